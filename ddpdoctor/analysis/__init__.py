"""From the frames of a run to the numbers that checks, report and dashboards read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
import pandas as pd

from ddpdoctor.analysis.arrivals import late_arrivals_of
from ddpdoctor.analysis.delays import delays_of
from ddpdoctor.analysis.early_end import early_end, waited_in_vain
from ddpdoctor.analysis.efficiency import efficiency
from ddpdoctor.analysis.ending import mixed_collectives, stuck_collectives, unfinished
from ddpdoctor.analysis.extras import step_calls
from ddpdoctor.analysis.frontier import frontier
from ddpdoctor.analysis.gain import gains
from ddpdoctor.analysis.hotlines import HotLines
from ddpdoctor.analysis.link import fit_link
from ddpdoctor.analysis.model import Analysis, LateArrivals, PhaseTimes, RankStats, StepRange
from ddpdoctor.analysis.named import named_times
from ddpdoctor.analysis.phasetimes import phase_times
from ddpdoctor.analysis.replicas import model_groups
from ddpdoctor.analysis.stepcalls import calls_of_steps
from ddpdoctor.analysis.stepwise import steps_of_all, stepwise
from ddpdoctor.analysis.waiting import causes_of_waiting
from ddpdoctor.events import RankInfo
from ddpdoctor.tables import build_tables
from ddpdoctor.tracefile import RankTrace, Run

__all__ = ["Analysis", "analyze"]

WARMUP_SHARE = 0.1  # caches, allocators and clocks settle over the first steps
WARMUP_LEAST = 2  # DDP rebuilds its buckets in the second
WARMUP_MOST = 10
COST_STEPS = 10  # fewer, and what recording costs once is most of what it costs a step
_NS_PER_MS = 1e6


def analyze(run: Run) -> Analysis:
    """All statistics of a run. Works with the ranks and steps that were recorded."""
    run = replace(run, ranks=tuple(sorted(run.ranks, key=lambda trace: trace.info.rank)))
    tables = build_tables(run)
    steps = _counted_steps(tables.steps)
    times_of = phase_times(tables.steps, steps, split=tables.clock.comparable)
    judged = tables.clock.comparable and steps.counted > 0
    by_step = stepwise(tables, steps)
    delays = delays_of(tables, by_step) if judged else None
    late = late_arrivals_of(delays, HotLines.of(run)) if delays is not None else {}
    size = run.info.world_size
    link = fit_link(tables, steps, size, run.info.backend, run.network) if judged else None
    ranks = tuple(_stats(trace.info, times_of, late) for trace in run.ranks)
    times = [stats.times for stats in ranks if stats.times is not None]
    analysis = Analysis(
        run,
        tables,
        run.info.world_size,
        steps,
        ranks,
        link,
        stuck_collectives(run, tables),
        early_end(run, tables.clock),
        waited_in_vain(run),
        unfinished(run),
        _recorder_cost(run.ranks),
        named_times(run, tables, steps),
        model_groups(run),
        causes_of_waiting(run, tables, by_step, delays, _mean_step_ms(times)),
        frontier(by_step),
        efficiency(times),
        mixed=mixed_collectives(run, tables),
    )
    if judged:
        analysis = _with_calls(analysis)
    return analysis if _is_cost_of_a_step(analysis) else replace(analysis, cost_ms_per_step=None)


def _mean_step_ms(times: Sequence[PhaseTimes]) -> float:
    return mean(each.step_ms for each in times) if times else 0.0


def _with_calls(analysis: Analysis) -> Analysis:
    """With what the calls of a step cost, and what changing them would gain."""
    run, tables, steps = analysis.run, analysis.tables, analysis.steps
    calls = calls_of_steps(tables, steps, analysis.world_size, run.ranks[0].sites)
    made = step_calls(analysis, calls)
    found = gains(calls, analysis.link, analysis.models, by_the_cpu=analysis.moved_by_the_cpu)
    return replace(analysis, gains=found, calls=made)


def _stats(
    info: RankInfo, times_of: dict[int, tuple[int, PhaseTimes]], late: dict[int, LateArrivals]
) -> RankStats:
    steps, times = times_of.get(info.rank, (0, None))
    return RankStats(info.rank, info.host, steps, times, late.get(info.rank))


def _counted_steps(steps: pd.DataFrame) -> StepRange:
    """Steps that every rank recorded, aligned by their synchronised backward, less the warm-up."""
    common = steps_of_all(steps["rank"].to_numpy(np.int64), steps["sync"].to_numpy(np.int64))
    if not len(common):
        return StepRange(0, 0, 0, -1)
    warmup = min(WARMUP_MOST, max(WARMUP_LEAST, int(len(common) * WARMUP_SHARE)))
    warmup = min(warmup, len(common) - 1)
    return StepRange(warmup, len(common) - warmup, int(common[warmup]), int(common[-1]))


def _is_cost_of_a_step(analysis: Analysis) -> bool:
    """Over few steps it is the cost of beginning to record, and says nothing of a step."""
    cost_ms, step_ms = analysis.cost_ms_per_step, analysis.step_ms
    if cost_ms is None or step_ms is None:
        return False
    return analysis.steps.counted >= COST_STEPS and cost_ms <= step_ms


def _recorder_cost(ranks: tuple[RankTrace, ...]) -> float | None:
    costs = [
        trace.cost.hooks_ns / trace.cost.steps for trace in ranks if trace.cost and trace.cost.steps
    ]
    return sum(costs) / len(costs) / _NS_PER_MS if costs else None
