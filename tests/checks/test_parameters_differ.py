"""DD501 parameters-differ and DD502 gradients-differ: one cause is one finding."""

from __future__ import annotations

import math
from dataclasses import replace

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import Outcome, run_checks
from ddpdoctor.events import GroupInfo
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import apart, model_info, same, trained

OF_MODELS = {"DD405", *(f"DD{number}" for number in range(501, 511))}


def found(run: Run) -> set[str]:
    """Codes of the model checks that find something."""
    results = run_checks(analyze(run))
    return {r.code for r in results if r.code in OF_MODELS and r.outcome is Outcome.FINDINGS}


def test_healthy_ranks_are_clean() -> None:
    run = trained(4)

    results = {r.code: r for r in run_checks(analyze(run)) if r.code in OF_MODELS}

    assert not found(run)
    for code in ("DD405", "DD501", "DD502", "DD503", "DD505", "DD506", "DD507", "DD508", "DD509"):
        assert results[code].outcome is Outcome.CLEAN, results[code]


def test_weights_loaded_on_one_rank_alone() -> None:
    run = trained(3, parameters=apart(since=1, rank=0))

    (finding,) = result_of("DD501", run).findings

    assert found(run) == {"DD501"}
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits == (0,)
    assert "since they were first looked at" in finding.message
    assert "Load the checkpoint before wrapping" in finding.fix


def test_a_rank_that_skips_an_optimizer_step() -> None:
    run = trained(
        parameters=apart(since=8),
        optimizer_steps=lambda rank, sync: sync - 1 - (rank == 1 and sync >= 8),
    )

    (finding,) = result_of("DD501", run).findings

    assert found(run) == {"DD501"}
    assert finding.culprits == (0,)
    assert "from step 7 on" in finding.message
    assert "rank 0 made more optimizer steps by then" in finding.message
    assert "all-reduce the flag" in finding.fix


def test_one_tensor_is_named() -> None:
    run = trained(4, parameters=apart(since=4, places=(2,), rank=3))

    (finding,) = result_of("DD501", run).findings

    assert "last.weight" in finding.message
    assert "first" not in finding.message.split("(")[1].split(")")[0]
    assert finding.culprits == (3,)


def test_the_last_digit_of_other_processors_is_a_warning() -> None:
    run = trained(parameters=apart(since=4, by=1e-8))

    (finding,) = result_of("DD501", run).findings

    assert finding.severity is Severity.WARNING
    assert "by rounding" in finding.message


def test_gradients_that_differ_explain_the_parameters() -> None:
    run = trained(gradients=apart(since=2, places=(0, 1)), parameters=apart(since=4))

    (finding,) = result_of("DD502", run).findings

    assert found(run) == {"DD502"}
    assert "first.weight, first.bias" in finding.message
    assert "use_reentrant=False" in finding.fix
    assert finding.evidence[-1].what == "parameters differ between ranks"


def test_a_communication_hook_is_suspected_but_not_one_that_leaves_ranks_apart() -> None:
    def hooked(hook: str) -> Run:
        arguments = model_info().arguments | {"communication hook": hook}
        return trained(gradients=apart(1), info=lambda rank: model_info(arguments=arguments))

    (finding,) = result_of("DD502", hooked("lossy_hook")).findings
    local = result_of("DD502", hooked("post_localSGD_hook"))

    assert finding.confidence is Confidence.LIKELY
    assert "lossy_hook" in finding.fix
    assert local.outcome is Outcome.SKIPPED


def test_tensors_that_are_not_finite_are_not_compared() -> None:
    def broken(rank: int, sync: int, place: int) -> float:
        return math.nan if rank == 0 else same(rank, sync, place)

    assert found(trained(parameters=broken, gradients=broken)) == set()


def test_ranks_of_other_groups_may_differ() -> None:
    """Two pairs that each train a model of their own."""
    run = trained(4, parameters=lambda r, s, p: same(r, s, p) * (1 + r % 2))
    pairs = tuple(
        replace(trace, ddp_groups=(GroupInfo("0", (trace.info.rank % 2, trace.info.rank % 2 + 2)),))
        for trace in run.ranks
    )
    assert found(run) == {"DD501"}
    assert found(replace(run, ranks=pairs)) == set()


def test_looks_of_one_rank_alone_are_not_compared() -> None:
    run = trained()
    run.ranks[1].model.samples.clear()

    assert result_of("DD501", run).outcome is Outcome.SKIPPED
    assert result_of("DD502", run).outcome is Outcome.SKIPPED
