"""DD406."""

from __future__ import annotations

from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.checks.not_wrapped import LEAST_STEPS
from ddpdoctor.findings import Severity
from ddpdoctor.launchfacts import Unsynced
from tests.launch_builders import launch, process, results


def trained(steps: int, without_collective: int) -> CheckResult:
    one = process(0, unsynced=Unsynced(steps, without_collective))
    return results(launch(one, world_size=4))["DD406"]


def test_no_collective_between_any_steps_is_an_error() -> None:
    (finding,) = trained(LEAST_STEPS, LEAST_STEPS).findings

    assert finding.severity is Severity.ERROR
    assert finding.message.startswith("rank 0 of 4 trains without DistributedDataParallel")


def test_a_logged_mean_now_and_then_is_no_synchronisation() -> None:
    (finding,) = trained(40, 38).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, "possible")


def test_a_collective_in_every_step_may_be_the_gradients() -> None:
    """FSDP, a sharded optimizer, or a script that reduces by itself."""
    assert trained(40, 0).outcome is Outcome.CLEAN


def test_two_optimizers_that_share_one_reduction_are_left_alone() -> None:
    assert trained(40, 20).outcome is Outcome.CLEAN


def test_a_few_steps_are_not_enough() -> None:
    assert trained(LEAST_STEPS - 1, LEAST_STEPS - 1).outcome is Outcome.SKIPPED
