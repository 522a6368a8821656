"""DD405 settings-differ: ranks train with different settings.

What it measures
    The arguments of DistributedDataParallel, class and settings of the optimizers when they step
    first, their learning rates at the steps that are looked at, and names, shapes, types and
    `requires_grad` of the model's parameters and buffers in their order, on all ranks. In a job
    that hangs, if it is recorded: the arguments by which DDP makes other collectives.

Why it matters
    DDP makes the gradients equal and nothing else: with another learning rate or weight decay on
    one rank each rank trains a model of its own. A model whose layers are made in another order
    has the gradients of different layers averaged together, without an error.

What to do
    Make settings and model from one configuration on all ranks, before `wrap`, and never from what
    differs between them: the rank, an unseeded random number, the order of a `set`.

When it is wrong
    Which devices a rank uses may differ and is not compared. Settings that are objects are not
    seen, and a change of a learning rate only at the steps that are looked at. Of a model with
    more than 1024 parameters a spread of their names is kept, so that the first one that
    differs may be earlier than the one that is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ddpdoctor.checks import NotEnoughData, hang_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe, describe_alike
from ddpdoctor.hang.alike import started_apart, wrapped_apart
from ddpdoctor.hang.situation import situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.wording import SHOWN, rank_list, said_by_rank

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis
    from ddpdoctor.analysis.modelcauses import Setting
    from ddpdoctor.analysis.replicas import ModelGroup

HARMLESS: Final = frozenset({"gradient_as_bucket_view", "bucket_bytes_cap"})  # results stay equal
_FIXES: Final = {
    "model": (
        "Build the model in the same order on all ranks: make its layers from a list, not from a "
        "`set` or from what depends on the rank."
    ),
    "optimizer": "Give the optimizer the same settings on all ranks.",
    "DDP argument": "Wrap the model with the same arguments on all ranks.",
}


@trace_check("DD405", "settings-differ")
def settings_differ(run: Analysis) -> Iterator[Finding]:
    from ddpdoctor.analysis.modelcauses import settings_that_differ
    from ddpdoctor.lastlook import judged_by, last_look

    seen = last_look(run.run)
    if seen is not None and wrapped_apart(seen):
        yield from judged_by(run, settings_differ_in_a_hang)
        return
    groups = [group for group in run.models if group.is_wrapped and len(group.ranks) > 1]
    if not groups:
        raise NotEnoughData("settings of one model were not recorded on two ranks")
    for group in groups:
        by_culprits: dict[tuple[int, ...], list[Setting]] = {}
        for setting in settings_that_differ(group):
            by_culprits.setdefault(setting.odd, []).append(setting)
        for culprits, settings in by_culprits.items():
            yield _finding(group, culprits, settings)


def _finding(group: ModelGroup, culprits: tuple[int, ...], settings: list[Setting]) -> Finding:
    names = [f"{setting.kind} {setting.name}" for setting in settings]
    shown = ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    odd = len(culprits) < len(group.ranks)
    who = f"{rank_list(culprits)} differ{'s' * (len(culprits) == 1)} from the others"
    serious = any(setting.name not in HARMLESS for setting in settings)
    kinds = dict.fromkeys(setting.kind for setting in settings)
    return Finding(
        severity=Severity.ERROR if serious else Severity.WARNING,
        confidence=Confidence.CERTAIN,
        message=f"{who if odd else 'the ranks differ'} in {shown} of {group.label}",
        fix=" ".join(_FIXES[kind] for kind in kinds),
        culprits=culprits,
        evidence=(
            *(Evidence(f"{s.kind} {s.name}", said_by_rank(s.values)) for s in settings),
            *_consequence(group),
        ),
    )


def _consequence(group: ModelGroup) -> Iterator[Evidence]:
    from ddpdoctor.analysis.modelcauses import cause_of
    from ddpdoctor.analysis.replicas import Compared

    differ = group.parameters
    if differ is not None and cause_of(group, Compared.PARAMETERS) == "DD405":
        since = f"from step {group.step_at(differ.sync)} on"
        said = f"{since}, by up to {100 * differ.last_relative:.2g} %"
        yield Evidence("parameters differ between ranks", said)


@hang_check("DD405", "settings-differ")
def settings_differ_in_a_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    apart = () if started_apart(snapshot) else wrapped_apart(snapshot)
    if not apart:
        return
    yield describe_alike.finding(
        snapshot,
        apart,
        f"DistributedDataParallel was given another {describe_alike.names(apart)} on some ranks "
        "than on others, by which it makes other collectives",
        _FIXES["DDP argument"],
        describe.records(situation(snapshot).all),
    )
