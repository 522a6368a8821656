"""DD503 unused-parameters."""

from __future__ import annotations

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Site
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import FailureKind, ModelFailure, ModelInfo
from tests.builders import result_of
from tests.model_builders import model_info, on_rank, trained, with_facts

LINE = Site("/home/user/train.py", 21, "train")


def searching(_rank: int) -> ModelInfo:
    return model_info(arguments={"find_unused_parameters": "True"})


def failed(*names: str) -> ModelFailure:
    return ModelFailure(FailureKind.UNUSED, 0, 1, names, LINE)


def test_ddps_error_on_all_ranks_names_what_to_delete() -> None:
    run = with_facts(trained(looks=(1,)), lambda rank: [failed("last.weight", "last.bias")])

    (finding,) = result_of("DD503", run).findings

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.message.startswith("last.weight, last.bias of Net got no gradient on any rank")
    assert "Delete them, or freeze them" in finding.fix
    assert [where.line for where in finding.where] == [21, 21]
    assert result_of("DD509", run).outcome is Outcome.CLEAN


def test_ddps_error_on_one_rank_asks_for_the_same_on_all() -> None:
    run = with_facts(trained(3, looks=(1,)), on_rank(2, failed("last.weight")))

    (finding,) = result_of("DD503", run).findings

    assert finding.culprits == (2,)
    assert "on rank 2" in finding.message
    assert "0 * branch(x).sum()" in finding.fix


def test_layers_dropped_on_one_rank_are_averaged_with_zeros() -> None:
    run = trained(
        info=searching,
        unused=lambda rank, sync: (2, 3) if rank == 1 and sync in (2, 8) else (),
    )

    (finding,) = result_of("DD503", run).findings

    assert finding.severity is Severity.WARNING
    assert finding.culprits == (1,)
    assert "last.weight, last.bias got no gradient on rank 1" in finding.message
    assert finding.evidence[1].value == "0 % on rank 0, 33 % on rank 1"
    assert "averaged with zeros" in finding.fix


def test_what_no_rank_ever_uses_is_a_hint_where_ddp_searches() -> None:
    run = trained(info=searching, unused=lambda rank, sync: (3,))

    (finding,) = result_of("DD503", run).findings

    assert finding.severity is Severity.INFO
    assert "last.bias of Net never gets a gradient on any rank" in finding.message


def test_a_parameter_that_is_missing_without_a_search_is_an_error() -> None:
    run = trained(looks=(1,), unused=lambda rank, sync: (3,) if rank else ())

    (finding,) = result_of("DD503", run).findings

    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.LIKELY
    assert "find_unused_parameters=True avoids that" in finding.fix


def test_branches_that_change_alike_on_all_ranks_are_healthy() -> None:
    run = trained(4, info=searching, unused=lambda rank, sync: (2,) if sync % 2 else (3,))

    assert result_of("DD503", run).outcome is Outcome.CLEAN


def test_not_measured_is_not_clean() -> None:
    run = trained(looked_at=lambda rank, sync: ())

    assert result_of("DD503", run).outcome is Outcome.SKIPPED
