"""A report on a launch as text: what was looked at, what is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.baseline import NetworkBaseline
from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.ifnames import cards
from ddpdoctor.launchfacts import UNLIMITED, LaunchFacts, Process, Reach, Rendezvous
from ddpdoctor.report import Report
from ddpdoctor.terminal import Columns, said

NOT_MEASURED = "not measured"
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}
_NAMES = (  # the shared memory is only looked at
    "host", "ranks", "python", "torch", "GPUs", "CPUs", "memory", "/dev/shm", "files", "address",  # noqa: S108
)  # fmt: skip
_SHOWN_HOSTS = 16
_GIB = 2**30


def render(report: Report, facts: LaunchFacts, console: Console) -> None:
    """Print the whole report of a launch that was tried."""
    console.print(Group(*_parts(report, (facts,), _headline(facts))), highlight=False)


def render_noted(
    report: Report, meetings: Sequence[LaunchFacts], console: Console, *, short: bool = False
) -> None:
    """Print the report on a launch that left notes: in full, or what `ddpdoctor run` shows."""
    headline = f"ddpdoctor · launch {report.name} · {_noted(meetings)}"
    console.print(Group(*_parts(report, meetings, headline, short=short)), highlight=False)


def _parts(
    report: Report, meetings: Sequence[LaunchFacts], headline: str, *, short: bool = False
) -> Iterator[RenderableType]:
    yield said(headline, style="bold")
    if not short:
        yield from _hosts(meetings)
    for facts in meetings:
        if facts.network is not None:
            yield from _network(facts.network)
    for result, finding in report.findings:
        yield Text()
        yield from _finding(result, finding)
    yield Text()
    yield from _closing(report) if not short else _hint(report)


def _hosts(meetings: Sequence[LaunchFacts]) -> Iterator[RenderableType]:
    everyone = LaunchFacts(tuple(process for facts in meetings for process in facts.processes))
    hosts = list(everyone.by_host.values())
    words = frozenset({"host", "ranks", "address"})
    yield Columns(_NAMES, tuple(_row(p) for p in hosts[:_SHOWN_HOSTS]), words, left=words)
    if len(hosts) > _SHOWN_HOSTS:
        yield Text(f"… {len(hosts) - _SHOWN_HOSTS} more hosts")


def _hint(report: Report) -> Iterator[RenderableType]:
    yield said(f"the whole report: ddpdoctor report {report.name}", style="dim")


def _noted(meetings: Sequence[LaunchFacts]) -> str:
    """How many joined, and where."""
    came = [process for facts in meetings for process in facts.processes]
    apart = sum(len(facts.apart) for facts in meetings)
    size = max((facts.world_size or 0 for facts in meetings), default=0)
    met = meetings[0].rendezvous if len(meetings) == 1 else None
    place = f" at {met.address}:{met.port}" if met is not None and met.port else ""
    joined = f"{len(came) - apart} of {len(came)} processes joined a group of {size}"
    return f"{joined} rank{'s' * (size != 1)}{place}"


def _headline(facts: LaunchFacts) -> str:
    met = facts.rendezvous
    if met is None:
        return f"ddpdoctor · this node alone: {facts.processes[0].host}"
    if met.reach is not Reach.REACHED:
        return f"ddpdoctor · {facts.processes[0].label} met nobody at {_where(met)}"
    came = len(facts.ranks)
    return f"ddpdoctor · {came} of {facts.world_size} {facts.unit}s met at {_where(met)}"


def _where(met: Rendezvous) -> str:
    return f"{met.address}:{met.port} in {met.waited_s:.1f} s"


def _row(processes: list[Process]) -> tuple[str, ...]:
    first = processes[0]
    limits = first.limits
    ranks = sorted({process.rank for process in processes if process.rank is not None})
    card = next(iter(cards(first.network)), None)
    return (
        first.host,
        ", ".join(map(str, ranks[:8])) + ("…" if len(ranks) > 8 else "") if ranks else "none",
        first.versions.get("python", NOT_MEASURED),
        first.versions.get("torch", "none"),
        str(len({device.uuid for process in processes for device in process.devices})),
        NOT_MEASURED if first.cpus is None else str(first.cpus),
        _size(limits.memory_bytes),
        _size(limits.shm_bytes),
        _count(limits.open_files),
        f"{card.address} ({card.name})" if card else first.network.own_address or "none",
    )


def _network(network: NetworkBaseline) -> Iterator[RenderableType]:
    """All-reduces over the sizes, then each two hosts."""
    way = "loopback of one host" if network.shares_host else network.interface or "by default"
    yield Text()
    yield said(f"network · {network.backend}, {way} · {network.taken_s:.1f} s", style="bold")
    yield Columns(
        ("all-reduce", "time", "algbw", "busbw"),
        tuple(
            (
                _bytes(each.nbytes), f"{1e3 * each.seconds:.2f} ms",
                f"{each.algbw_gb_per_s:.3f} GB/s", f"{each.busbw_gb_per_s:.3f} GB/s",
            )
            for each in network.sizes
        ),
        frozenset(),
    )  # fmt: skip
    if not network.pairs:
        return
    slowest = sorted(network.pairs, key=lambda pair: pair.slower_gb_per_s)[:_SHOWN_HOSTS]
    yield Columns(
        ("hosts", "one way", "there", "back"),
        tuple(
            (
                f"{network.hosts[pair.rank]} – {network.hosts[pair.peer]}",
                f"{1e3 * pair.latency_s:.2f} ms",
                f"{pair.gb_per_s:.3f} GB/s", f"{pair.back_gb_per_s:.3f} GB/s",
            )
            for pair in slowest
        ),
        frozenset({"hosts"}), left=frozenset({"hosts"}),
    )  # fmt: skip
    if len(network.pairs) < network.pairs_planned or len(network.pairs) > len(slowest):
        yield Text(f"{len(network.pairs)} of {network.pairs_planned} pairs measured", style="dim")


def _bytes(nbytes: int) -> str:
    return f"{nbytes // 2**20} MiB" if nbytes >= 2**20 else f"{nbytes // 1024} KiB"


def _size(value: int | None) -> str:
    if value is None:
        return NOT_MEASURED
    if value >= UNLIMITED:
        return "no limit"
    return f"{value / _GIB:.1f} GiB" if value >= _GIB else f"{value / 2**20:.0f} MiB"


def _count(value: int | None) -> str:
    if value is None:
        return NOT_MEASURED
    return "no limit" if value >= UNLIMITED else str(value)


def _finding(result: CheckResult, finding: Finding) -> Iterator[RenderableType]:
    head = said(f"{result.code} {result.name}", style=_STYLES[finding.severity])
    head.append(f"  {finding.severity.label}, {finding.confidence.value}", style="dim")
    yield head
    yield Padding(said(finding.message), (0, 0, 0, 2))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for index, evidence in enumerate(finding.evidence):
        rows.add_row("" if index else "evidence", said(_evidence(evidence)))
    rows.add_row("fix", said(finding.fix))
    yield Padding(rows, (0, 0, 0, 2))


def _evidence(evidence: Evidence) -> str:
    value = evidence.value
    shown = f"{value:.4g}" if isinstance(value, (int, float)) else value or NOT_MEASURED
    needed = f" (needed: {evidence.threshold:.4g})" if isinstance(evidence.threshold, float) else ""
    return f"{evidence.what}: {shown} {evidence.unit}".rstrip() + needed


def _closing(report: Report) -> Iterator[RenderableType]:
    clean = [f"{r.code} {r.name}" for r in report.results if r.outcome is Outcome.CLEAN]
    if clean:
        yield said(f"clean: {', '.join(clean)}", style="dim" if report.findings else "green")
    for result in report.results:
        if result.outcome in (Outcome.SKIPPED, Outcome.CRASH):
            how = "skipped" if result.outcome is Outcome.SKIPPED else "crashed"
            yield said(f"{how}: {result.code} {result.name}: {result.reason}", style="dim")
    for note in report.notes:
        yield said(f"note: {note}", style="dim")
