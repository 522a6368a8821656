"""DD207 unused-search: find_unused_parameters costs time in each step and finds nothing.

What it measures
    For models wrapped with `find_unused_parameters=True` whose parameters all took part in every
    backward that was looked at, on all ranks: the time that the search takes at the end of each
    forward, and the map that is reduced beside the gradients.

Why it matters
    The search walks the whole graph on the training thread before each backward, with nothing else
    running, and one more message goes over the network.

What to do
    Leave the argument out. Should a parameter go unused after all, DDP says so at the next forward
    and names it; `static_graph=True` finds out once where it is always the same ones.

When it is wrong
    Only some of the backwards are looked at: a branch that is taken once in a thousand batches may
    not be seen. With a cost below the noise of a step it is only a hint.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

LOOKS_NEEDED: Final = 4  # backwards that were looked at on each rank
STEPS_NEEDED: Final = 5
SHARE_WARNING: Final = 0.01  # of the step: it is measured by itself, and leaving it out is free
LEAST_MS: Final = 0.3  # of a step: what DDP does there anyway takes some 0.05 ms
_FIND: Final = "find_unused_parameters"


@trace_check("DD207", "unused-search")
def unused_search(run: Analysis) -> Iterator[Finding]:
    searching = [group for group in run.models if group.is_wrapped and _searches(group)]
    if not run.models:
        raise NotEnoughData("no model was recorded")
    if not searching:
        return
    need_steps(run, STEPS_NEEDED)
    if run.step_ms is None:
        raise NotEnoughData("no whole step was recorded on all ranks")
    looked = [group for group in searching if _least_looks(group) >= LOOKS_NEEDED]
    if not looked:
        raise NotEnoughData("which parameters took part in a backward was not looked at")
    for group in looked:
        search_ms = _search_ms(group)
        if not _found_any(group) and search_ms is not None:
            yield _finding(run, group, search_ms, run.step_ms)


def _searches(group: ModelGroup) -> bool:
    arguments = group.info.arguments
    return arguments.get(_FIND) == "True" and arguments.get("static_graph") != "True"


def _least_looks(group: ModelGroup) -> int:
    return min(
        sum(1 for sample in group.samples(rank).values() if sample.looked_at)
        for rank in group.ranks
    )


def _found_any(group: ModelGroup) -> bool:
    """A parameter that was not used somewhere, in a look or in DDP's own error."""
    if any(facts.failures for facts in group.facts.values()):
        return True
    return any(s.unused for rank in group.ranks for s in group.samples(rank).values())


def _search_ms(group: ModelGroup) -> float | None:
    """A forward, of the rank that pays least."""
    found = [facts.searches.get(group.number) for facts in group.facts.values()]
    known = [each.spent_ns / each.searches / 1e6 for each in found if each and each.searches]
    return min(known) if known else None


def _forwards(group: ModelGroup) -> float:
    """Of each reduction."""
    runs = [r for facts in group.facts.values() for r in facts.batches.get(group.number, ())]
    return mean(run.forwards for run in runs) if runs else 1.0


def _finding(run: Analysis, group: ModelGroup, search_ms: float, step_ms: float) -> Finding:
    map_ms = _map_ms(run)
    cost_ms = search_ms * max(1.0, _forwards(group))
    share = cost_ms / step_ms
    costs = share >= SHARE_WARNING and cost_ms >= LEAST_MS
    looks = _least_looks(group)
    return Finding(
        severity=Severity.WARNING if costs else Severity.INFO,
        confidence=Confidence.LIKELY,
        message=(
            f"{group.label} is wrapped with {_FIND}=True, and all of its parameters took part in "
            f"{looks} of {looks} backwards looked at; the search takes {cost_ms:.2f} ms of "
            f"{step_ms:.1f} ms a step ({percent(share)})" + ("" if costs else ", which is little")
        ),
        fix=(
            f"Leave {_FIND}=True out. DDP names a parameter at the next forward if one goes unused "
            "after all; static_graph=True serves where it is always the same ones. A step would "
            f"take about {step_ms - cost_ms:.1f} ms instead of {step_ms:.1f} ms."
        ),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=(
            Evidence("backwards looked at", looks, "", LOOKS_NEEDED),
            Evidence("search per step", cost_ms, "ms", LEAST_MS),
            Evidence("share of the step", 100 * share, "%", 100 * SHARE_WARNING),
            Evidence("the map is one more message a step, of", map_ms, "ms"),
        ),
        lost_s=cost_ms * run.steps.counted / 1e3 if costs else None,
    )


def _map_ms(run: Analysis) -> float | None:
    if run.calls is None or not run.calls.search_bytes or run.link is None:
        return None
    return run.link.alpha_ms
