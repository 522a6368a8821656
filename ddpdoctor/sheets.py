"""Tables of numbers, as typed rows: shown on pages and exported as CSV from the same cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ddpdoctor.analysis.bucketed import BucketParameters, bucket_parameters
from ddpdoctor.analysis.buckets import BucketStats, bucket_stats
from ddpdoctor.analysis.feeds import (
    BatchSizes,
    LoaderFeed,
    SharedDraws,
    batch_sizes,
    loader_feeds,
    shared_draws,
)
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.seenlines import LastSeen, SeenLine, last_seen, seen_lines
from ddpdoctor.analysis.standings import (
    HostStanding,
    RankStanding,
    host_standings,
    rank_standings,
)

Cell = str | int | float | None  # None is not measured
FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would take for a formula


@dataclass(frozen=True)
class Column:
    """A heading, with its unit; `digits` after the point of its numbers."""

    name: str
    digits: int = 2
    note: str = ""  # what the heading does not say


@dataclass(frozen=True)
class Row:
    """Cells, and the query string that shows the row's place on the timeline."""

    cells: tuple[Cell, ...]
    view: str | None = None


@dataclass(frozen=True)
class Sheet:
    """One table. `missing` says why it is empty, and what to record."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    missing: str


def as_csv(sheet: Sheet) -> str:
    """Numbers in full; an empty cell is not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in sheet.columns])
    writer.writerows([_safe(cell) for cell in row.cells] for row in sheet.rows)
    return out.getvalue()


def _safe(cell: Cell) -> Cell:
    """Names come from traces: none becomes a formula in a spreadsheet."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell


def _rank_row(each: RankStanding) -> Row:
    stats = each.stats
    times, late = stats.times_by_name(), stats.late
    names = ("input", "forward", "backward", "wait", "transfer", "optimizer", "between", "step")
    return Row(
        (
            stats.rank, stats.host, each.own_ms, each.over_ms,
            *(times[f"{name}_ms"] for name in names), times["overlapped_ms"],
            100 * late.last_share if late else None, late.caused_delay_ms if late else None,
        ),
        f"rank={stats.rank}",
    )  # fmt: skip


def ranks_sheet(analysis: Analysis) -> Sheet:
    phases = ("input", "forward", "backward", "wait", "transfer", "optimizer", "between", "step")
    columns = (
        Column("rank"), Column("host"),
        Column("own ms", note="A step without wait and transfer"),
        Column("over others", note="Own time over the median of the other ranks, ms"),
        *(Column(f"{name} ms") for name in phases),
        Column("hidden ms", note="Communication behind compute"),
        Column("last in %", 0, "Steps in which it arrived last at the collective that cost most"),
        Column("delay ms", note="By which it held the others up, mean of a step"),
    )  # fmt: skip
    return Sheet(
        "Ranks", columns, tuple(map(_rank_row, rank_standings(analysis))),
        "No rank was recorded.",
    )  # fmt: skip


def _host_row(each: HostStanding) -> Row:
    return Row(
        (each.host, len(each.ranks), f"{min(each.ranks)}–{max(each.ranks)}", each.own_ms,
         each.wait_ms, each.slowest, each.slowest_ms),
        f"rank={each.slowest if each.slowest is not None else each.ranks[0]}",
    )  # fmt: skip


def hosts_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("host"), Column("ranks"), Column("from–to"), Column("own ms"), Column("wait ms"),
        Column("slowest rank"), Column("its own ms"),
    )  # fmt: skip
    rows = tuple(map(_host_row, host_standings(rank_standings(analysis))))
    return Sheet("Hosts", columns, rows, "No rank was recorded.")


def _bucket_row(each: BucketStats, held: BucketParameters | None) -> Row:
    share = None if each.last_share is None else 100 * each.last_share
    view = None if each.worst_sync is None else f"sync={each.worst_sync}&rank={each.worst_rank}"
    return Row(
        (each.bucket, each.nbytes / 2**20, each.reductions, each.spread_ms, each.spread_high_ms,
         each.wait_ms, each.transfer_ms, each.gb_per_s, each.exposed_ms, each.last_rank, share,
         each.worst_sync, None if held is None else _names(held.names)),
        view,
    )  # fmt: skip


def _names(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)}: {names[0]} … {names[-1]}"


def buckets_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("bucket"), Column("MiB"), Column("reductions"),
        Column("spread ms", note="Last minus first arrival, median"),
        Column("spread p95 ms"), Column("wait ms", note="Mean over ranks"),
        Column("transfer ms", note="Median"), Column("GB/s", note="Bytes by the median transfer"),
        Column("exposed ms", note="Of the transfer, while the training thread stood still"),
        Column("last rank", note="Arrives last most often"), Column("in %", 0),
        Column("worst step"),
        Column("parameters", note="In the order of their gradients"),
    )  # fmt: skip
    buckets = bucket_stats(analysis)
    held = {part.key: part for part in bucket_parameters(analysis.models, buckets)}
    rows = tuple(_bucket_row(each, held.get(each.key)) for each in buckets)
    return Sheet(
        "Buckets", columns, rows,
        "No bucket of DDP was seen in a counted step. Buckets are told apart where the model is "
        "wrapped by ddpdoctor.wrap, or started by ddpdoctor run, and steps are recorded in "
        "detail; a comm hook or an own gradient reduction hides them.",
    )  # fmt: skip


def _feed_row(each: LoaderFeed) -> Row:
    info = each.info
    where = "" if info.site is None else f"{info.site.file.rsplit('/', 1)[-1]}:{info.site.line}"
    return Row(
        (info.loader, each.rank, info.dataset, info.dataset_length, info.sampler, info.batch_size,
         info.workers, info.length, each.epochs, each.batches, each.samples, where),
    )  # fmt: skip


def loaders_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("loader"), Column("rank"), Column("dataset"), Column("length"), Column("sampler"),
        Column("batch"), Column("workers"), Column("batches an epoch"), Column("epochs seen"),
        Column("batches seen"), Column("samples"), Column("where"),
    )  # fmt: skip
    return Sheet(
        "Loaders", columns, tuple(map(_feed_row, loader_feeds(analysis))),
        "No loader was seen. Loaders are recorded whose class defines its own __next__ and that "
        "the training loop iterates, as torch's DataLoader.",
    )  # fmt: skip


def _draws_row(each: SharedDraws) -> Row:
    return Row((*each.ranks, each.loader, each.epoch, 100 * each.share), f"rank={each.ranks[1]}")


def draws_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("rank"), Column("and rank"), Column("loader"), Column("epoch"),
        Column("in common %", 1, "Of the smaller one's draws, beyond padding"),
    )  # fmt: skip
    return Sheet(
        "Samples that ranks share", columns, tuple(map(_draws_row, shared_draws(analysis))),
        "What each rank drew was not recorded: that needs a loader over a dataset with indices, "
        "on two or more ranks.",
    )  # fmt: skip


def _sizes_row(each: BatchSizes) -> Row:
    return Row((each.model, each.rank, each.reductions, each.samples, each.least, each.most))


def batches_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("model"), Column("rank"), Column("reductions"),
        Column("samples", 1, "Mean of a reduction: the rank's weight in the gradient"),
        Column("least"), Column("most"),
    )  # fmt: skip
    return Sheet(
        "Batch sizes", columns, tuple(map(_sizes_row, batch_sizes(analysis))),
        "Sizes of batches were not recorded: the model's first argument must be a tensor.",
    )  # fmt: skip


def _line_row(each: SeenLine) -> Row:
    site = each.site
    return Row(
        (each.phase.label, f"{site.file}:{site.line}", site.function, each.samples,
         100 * each.share, each.most_rank, 100 * each.most_share),
        f"rank={each.most_rank}",
    )  # fmt: skip


def lines_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("phase"), Column("line"), Column("function"), Column("samples"),
        Column("of all %", 1), Column("most on rank"), Column("of its samples %", 1),
    )  # fmt: skip
    return Sheet(
        "Lines that the training threads were seen in", columns,
        tuple(map(_line_row, seen_lines(analysis))),
        "No line was sampled. The recorder looks at the training thread from time to time: a run "
        "of a few seconds is seen rarely, or not at all.",
    )  # fmt: skip


def _last_row(each: LastSeen) -> Row:
    sites = " ← ".join(f"{site.file}:{site.line} {site.function}" for site in each.sites[:6])
    phase = None if each.phase is None else each.phase.label
    return Row((each.rank, each.what, each.seconds, phase, sites or None), f"rank={each.rank}")


def last_sheets(analysis: Analysis) -> tuple[tuple[str, Sheet], ...]:
    """Apart for each moment at which ranks were looked at; one without rows where none was."""
    whole = last_sheet(analysis)
    moments = dict.fromkeys(str(row.cells[1]) for row in whole.rows)
    return tuple(
        (moment, replace(whole, rows=tuple(row for row in whole.rows if row.cells[1] == moment)))
        for moment in moments
    ) or (("", whole),)


def last_sheet(analysis: Analysis) -> Sheet:
    columns = (
        Column("rank"), Column("what"), Column("seconds", 1), Column("phase"), Column("where"),
    )  # fmt: skip
    return Sheet(
        "Where ranks stood at the end", columns, tuple(map(_last_row, last_seen(analysis))),
        "No rank stood still, and none was told to end. For a job that hangs now, "
        "ddpdoctor diagnose takes the stacks of all ranks.",
    )  # fmt: skip


SHEETS: Final[dict[str, Callable[[Analysis], Sheet]]] = {
    "ranks": ranks_sheet,
    "hosts": hosts_sheet,
    "buckets": buckets_sheet,
    "loaders": loaders_sheet,
    "samples": draws_sheet,
    "batches": batches_sheet,
    "lines": lines_sheet,
    "standing": last_sheet,
}
