"""DD405 settings-differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.modelevents import OptimizerInfo, WatchedTensor
from tests.builders import StepTimes, result_of, simulate
from tests.model_builders import apart, model_info, on_rank, trained, with_facts


def optimizer(**settings: str) -> OptimizerInfo:
    return OptimizerInfo(0, "SGD", (0,), {"lr": "0.1", "momentum": "0"} | settings)


def test_another_learning_rate_on_one_rank_names_it_and_what_follows() -> None:
    run = with_facts(trained(3, parameters=apart(since=2)), on_rank(1, optimizer(lr="0.2")))

    (finding,) = result_of("DD405", run).findings

    assert finding.severity is Severity.ERROR
    assert finding.culprits == (1,)
    assert finding.message == "rank 1 differs from the others in optimizer lr of Net"
    assert finding.evidence[0].value == "0.1 on ranks 0 and 2; 0.2 on rank 1"
    assert "from step 1 on" in str(finding.evidence[1].value)
    assert result_of("DD501", run).outcome is Outcome.SKIPPED
    assert "DD405 explains" in (result_of("DD501", run).reason or "")


def test_another_class_of_optimizer_is_not_compared_setting_by_setting() -> None:
    run = with_facts(trained(), on_rank(1, OptimizerInfo(0, "AdamW", (0,), {"lr": "0.001"})))

    (finding,) = result_of("DD405", run).findings

    assert [e.what for e in finding.evidence] == ["optimizer class"]


def test_a_schedule_that_runs_ahead_on_one_rank_is_found_later() -> None:
    run = trained(rates=lambda rank, sync: (0.1 if sync < 8 or not rank else 0.05,))

    (finding,) = result_of("DD405", run).findings

    assert "lr at step 7" in finding.message


def test_a_rank_that_skipped_a_step_has_an_earlier_rate_and_no_other_schedule() -> None:
    run = trained(
        rates=lambda rank, sync: (1 / (sync - rank * (sync > 4)),),
        optimizer_steps=lambda rank, sync: sync - 1 - rank * (sync > 4),
    )

    assert result_of("DD405", run).outcome is Outcome.CLEAN


def test_layers_in_another_order_name_the_first_that_differs() -> None:
    tensors = model_info().parameters
    other = (tensors[2], tensors[1], tensors[0], tensors[3])

    run = trained(
        parameters=apart(since=1),
        info=lambda rank: (
            model_info(parameters=other, parameter_digest=9) if rank else model_info()
        ),
    )
    (finding,) = result_of("DD405", run).findings

    assert finding.severity is Severity.ERROR
    assert "model parameter 0" in finding.message
    assert "last.weight (4x4, float32) on rank 1" in str(finding.evidence[0].value)
    assert "DD405 explains" not in (result_of("DD502", run).reason or "")


def test_a_difference_beyond_the_names_that_were_kept_is_said() -> None:
    run = trained(info=lambda rank: model_info(parameter_digest=rank))

    (finding,) = result_of("DD405", run).findings

    assert "names, shapes or types of tensors" in finding.message


@pytest.mark.parametrize(
    ("name", "severity"),
    [("bucket_bytes_cap", Severity.WARNING), ("broadcast_buffers", Severity.ERROR)],
)
def test_another_argument_of_ddp(name: str, severity: Severity) -> None:
    def info(rank: int):
        return model_info(arguments=model_info().arguments | {name: str(rank)})

    (finding,) = result_of("DD405", trained(info=info)).findings

    assert finding.severity is severity
    assert finding.culprits == (0, 1)


def test_devices_and_frozen_layers_alike_on_all_ranks_are_healthy() -> None:
    frozen = replace(model_info().parameters[0], trainable=False)

    def info(rank: int):
        arguments = model_info().arguments | {"device_ids": str(rank)}
        return model_info(arguments=arguments, parameters=(frozen,))

    assert result_of("DD405", trained(4, info=info)).outcome is Outcome.CLEAN


def test_two_models_of_one_job_are_told_apart() -> None:
    run = with_facts(trained(), lambda rank: [model_info(model=1, name="Critic")])
    run = with_facts(run, on_rank(1, OptimizerInfo(1, "SGD", (1,), {"lr": "1"})))
    run = with_facts(run, on_rank(0, OptimizerInfo(1, "SGD", (1,), {"lr": "2"})))

    (finding,) = result_of("DD405", run).findings

    assert "of Critic (model 1)" in finding.message


def test_without_model_facts_it_is_skipped() -> None:
    run = simulate(lambda rank, step: StepTimes(), 2, 12)

    for code in ("DD405", *(f"DD{number}" for number in range(501, 511))):
        assert result_of(code, run).outcome is Outcome.SKIPPED


def test_names_may_be_in_any_script() -> None:
    named = (WatchedTensor(0, "слой.вес", "4", "float32", True, True),)
    run = trained(
        info=lambda rank: model_info(parameters=named if rank else (), parameter_digest=rank)
    )

    (finding,) = result_of("DD405", run).findings

    assert "слой.вес" in str(finding.evidence[0].value)
