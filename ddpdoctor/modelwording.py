"""What the checks of models say alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData
from ddpdoctor.findings import Evidence
from ddpdoctor.wording import SHOWN

if TYPE_CHECKING:
    from ddpdoctor.analysis.model import Analysis
    from ddpdoctor.analysis.replicas import Difference, ModelGroup


def compared_groups(run: Analysis) -> list[ModelGroup]:
    """Models that were looked at on two ranks at least. NotEnoughData where there is none."""
    groups = [group for group in run.models if len(group.ranks) > 1]
    if not groups:
        raise NotEnoughData("no model was recorded on two ranks that reduce it together")
    if not any(group.info.measured for group in groups):
        raise NotEnoughData("the model's tensors are not on the CPU, and others are not read")
    looked_at = [group for group in groups if group.looks or group.unsynced]
    if not looked_at:
        raise NotEnoughData("no reduction was looked at on two ranks")
    return looked_at


def names_of(differ: Difference) -> str:
    """A few of the tensors that differ, and how many there are."""
    return few(differ.names, differ.count)


def few(names: Sequence[str], count: int | None = None) -> str:
    """The first names, and how many more there are."""
    count = len(names) if count is None else count
    shown = ", ".join(names[:SHOWN])
    rest = count - min(SHOWN, len(names))
    return f"{shown} and {rest} more" if rest > 0 else shown


def difference_evidence(differ: Difference) -> Iterator[Evidence]:
    yield Evidence("looks at which they differ", f"{differ.looks} of {differ.all_looks}")
    yield Evidence(
        f"{differ.part.value} that differ at the first", f"{differ.count} of {differ.compared}"
    )
    yield Evidence("largest difference of magnitudes there", 100 * differ.relative, "%")
    if differ.looks > 1:
        yield Evidence("at the last", 100 * differ.last_relative, "%")


def said_elsewhere(what: str, codes: Sequence[str]) -> str:
    return f"{what}, which {' and '.join(sorted(set(codes)))} explains"
