"""DD406 not-wrapped: ranks train without DDP, and their gradients are not synchronised.

What it measures
    Under `ddpdoctor run`, in a process group of several ranks: optimizer steps, whether a
    DistributedDataParallel model was made, and whether any collective of any group was issued
    from one step to the next. In a job that hangs: whether ranks are past the line in which others
    stand at the first collective of DDP's constructor, which needs all of them.

Why it matters
    Every rank then trains a model of its own on its part of the data, and the one that rank 0
    saves has seen a fraction of it. Nothing fails: the loss falls, only slower and to a worse end.

What to do
    `model = DistributedDataParallel(model)` (or `ddpdoctor.wrap(model)`) after
    init_process_group, and train what it returns.

When it is wrong
    FSDP, sharded optimizers and gradients that the script reduces itself use collectives in every
    step and are left alone. In a hang: a rank that makes its model elsewhere in the script, before
    that line, looks the same. Ranks that train different models on purpose are not told apart, and
    weights that are averaged after many steps only make it say `possible`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.checks import NotEnoughData, hang_check, launch_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.situation import numbers
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.wrapping import unwrapped
from ddpdoctor.launchfacts import LaunchFacts
from ddpdoctor.wording import rank_list

LEAST_STEPS: Final = 20  # fewer may be a warm-up or a test of the script
# A script that reduces its gradients does so in each step; logging and evaluation reduce seldom.
LEAST_SHARE: Final = 0.9


@launch_check("DD406", "not-wrapped")
def not_wrapped(launch: LaunchFacts) -> Iterator[Finding]:
    seen = {p.rank: p.unsynced for p in launch.processes if p.rank is not None and p.unsynced}
    if not seen:
        raise NotEnoughData("nothing was trained while looking; `ddpdoctor run` looks at that")
    judged = {rank: each for rank, each in seen.items() if each.steps >= LEAST_STEPS}
    if not judged:
        raise NotEnoughData(f"fewer than {LEAST_STEPS} optimizer steps were seen")
    alone = {r: e for r, e in judged.items() if e.without_collective >= LEAST_SHARE * e.steps}
    if not alone:
        return
    never = all(each.without_collective == each.steps for each in alone.values())
    ranks = tuple(sorted(alone))
    verb = "trains" if len(ranks) == 1 else "train"
    yield Finding(
        severity=Severity.ERROR if never else Severity.WARNING,
        confidence=Confidence.LIKELY if never else Confidence.POSSIBLE,
        message=(
            f"{rank_list(ranks)} of {launch.world_size} {verb} without DistributedDataParallel, "
            "and no gradients are synchronised"
        ),
        fix=(
            "Wrap the model after init_process_group: model = DistributedDataParallel(model), or "
            "ddpdoctor.wrap(model), and call what it returns in the training loop."
        ),
        culprits=ranks,
        evidence=tuple(
            Evidence(
                f"rank {rank}: optimizer steps without a collective since the step before",
                f"{each.without_collective} of {each.steps}",
            )
            for rank, each in alone.items()
        ),
    )


@hang_check("DD406", "not-wrapped")
def not_wrapped_in_a_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    """Some ranks wait in DDP's constructor for others, which have gone by it."""
    found = unwrapped(snapshot)
    if found is None:
        return
    wrapping, past = found.wrapping, found.past
    at = describe.spot(wrapping[0].place.frame)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{describe.names(past)} {describe.verb(past, 'has', 'have')} not wrapped the model: "
            f"{describe.names(wrapping)} {describe.verb(wrapping, 'waits', 'wait')} in "
            f"DistributedDataParallel at {at}, and {describe.names(past)} "
            f"{describe.doing(past[0], plural=len(past) > 1)}"
        ),
        fix=(
            "Wrap the model on all ranks, in the same order where there are several: take "
            f"DistributedDataParallel out of the condition before {wrapping[0].place.text}."
        ),
        culprits=numbers(past),
        victims=numbers(wrapping),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.conditions((*past, *wrapping)),
            *describe.states((*past, *wrapping)),
        ),
        where=describe.locations(past),
    )
