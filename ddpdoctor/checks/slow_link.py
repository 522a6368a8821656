"""DD206 slow-link: the links of one host, or between two hosts, are slower than the others.

What it measures
    The rate between each two hosts, by `ddpdoctor check --network`: a host whose links are all
    slower than the median of the hosts' best ones, or a pair where both have better ones. Of a
    recorded run the transfer that steps wait for says what it costs.

Why it matters
    In a ring each byte passes every link, so the slowest one sets the rate for all ranks, and no
    rank looks late: the all-reduce itself is slow everywhere.

What to do
    Look at that host's card, cable and switch port (`ethtool`, error counters), at its interface
    (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), or leave it out.

When it is wrong
    With two hosts there is one link and nothing to compare it with. What was measured before a run
    may have changed since. Other traffic at that moment looks like a slow link: measure again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ddpdoctor.baseline import SLOW_SHARE, NetworkBaseline, SlowLink, slow_links
from ddpdoctor.checks import NotEnoughData, launch_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.launchfacts import LaunchFacts
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # it is a launch check, too, and loads without pandas
    from ddpdoctor.analysis.model import Analysis

SHARE_WARNING: Final = 0.10  # of the step that the transfer takes; with less no link costs much
LEAST_MS: Final = 2.0  # a smaller transfer is within the scheduling noise of a busy host


@launch_check("DD206", "slow-link")
def before_training(launch: LaunchFacts) -> Iterator[Finding]:
    network = launch.network
    if network is None:
        raise NotEnoughData("the network was not measured: add --network")
    if not network.pairs:
        raise NotEnoughData(network.problem or "all ranks are on one host")
    if network.hosts_measured < 3:
        raise NotEnoughData("two hosts have one link, and nothing to compare it with")
    for link in slow_links(network):
        yield _finding(link, network, Severity.WARNING, None)


@trace_check("DD206", "slow-link")
def slow_link(run: Analysis) -> Iterator[Finding]:
    network = run.run.network
    if network is None or not network.pairs:
        raise NotEnoughData(
            "the links between hosts were not measured: `ddpdoctor check --network` under torchrun "
            "does so before a run"
        )
    if network.hosts_measured < 3:
        raise NotEnoughData("two hosts have one link, and nothing to compare it with")
    for link in slow_links(network):
        yield _of_run(link, network, run)


def _of_run(link: SlowLink, network: NetworkBaseline, run: Analysis) -> Finding:
    transfers = [times.transfer_ms for times in run.times if times.transfer_ms is not None]
    if not transfers or run.step_ms is None:
        return _finding(link, network, Severity.INFO, None)
    transfer_ms = min(transfers)
    lost_ms = transfer_ms * (1 - link.gb_per_s / link.others_gb_per_s)
    costs = lost_ms >= LEAST_MS and lost_ms / run.step_ms >= SHARE_WARNING
    cost = (
        f"; a step waits {transfer_ms:.1f} ms of {run.step_ms:.1f} ms for transfer, and at the "
        f"rate of the others would wait {transfer_ms - lost_ms:.1f} ms"
    )
    lost_s = lost_ms * run.steps.counted / 1e3
    return _finding(
        link,
        network,
        Severity.WARNING if costs else Severity.INFO,
        (cost, lost_s if costs else None),
    )


def _finding(
    link: SlowLink, network: NetworkBaseline, severity: Severity,
    cost: tuple[str, float | None] | None,
) -> Finding:  # fmt: skip
    hosts = [network.hosts[rank] for rank in link.ranks]
    is_host = len(link.ranks) == 1
    culprits = network.ranks_on(link.ranks)
    where = (
        f"all links of {hosts[0]} ({rank_list(culprits)})"
        if is_host
        else f"the link between {hosts[0]} and {hosts[1]} ({rank_list(culprits)})"
    )
    said, lost_s = cost if cost is not None else ("", None)
    return Finding(
        severity=severity,
        confidence=Confidence.LIKELY,
        message=(
            f"{where} give{'' if is_host else 's'} {link.gb_per_s:.3f} GB/s where the others give "
            f"{link.others_gb_per_s:.3f} GB/s{said}"
        ),
        fix=(
            f"Look at the card, cable and switch port of {' and '.join(hosts)} (ethtool, error "
            "counters) and at the interface that is used there (GLOO_SOCKET_IFNAME, "
            "NCCL_SOCKET_IFNAME); or leave "
            + ("that host out." if is_host else "one of the two out.")
            + " Measure again to see that it stays."
        ),
        culprits=culprits,
        victims=tuple(r for r in range(network.world_size) if r not in culprits),
        hosts=tuple(hosts),
        evidence=(
            Evidence("rate of the slow link", link.gb_per_s, "GB/s"),
            Evidence("rate of the others", link.others_gb_per_s, "GB/s"),
            Evidence(
                "share of the others' rate", 100 * link.gb_per_s / link.others_gb_per_s, "%",
                100 * SLOW_SHARE,
            ),
            Evidence("pairs measured", f"{len(network.pairs)} of {network.pairs_planned}"),
        ),
        lost_s=lost_s,
    )  # fmt: skip
