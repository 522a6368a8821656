"""DD402."""

from __future__ import annotations

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from tests.launch_builders import codes, gpus, launch, only_finding, process, results


def test_two_models_on_one_gpu_are_certain() -> None:
    """No set_device: both models are on cuda:0."""
    ranks = [process(rank, devices=gpus(2), device=0) for rank in (0, 1)]

    code, finding = only_finding(launch(*ranks))

    assert code == "DD402"
    assert finding.confidence is Confidence.CERTAIN
    assert finding.message == "ranks 0 and 1 use the same GPU of node0"
    assert finding.culprits == (0, 1)


def test_one_visible_gpu_for_two_ranks_of_a_host_is_shared() -> None:
    ranks = [process(rank, devices=gpus(1)) for rank in (0, 1)]

    _, finding = only_finding(launch(*ranks))

    assert finding.message == "ranks 0 and 1 would use the same GPU of node0"


def test_more_ranks_than_gpus() -> None:
    ranks = [process(rank, devices=gpus(2)) for rank in range(3)]

    _, finding = only_finding(launch(*ranks))

    assert finding.culprits == (2,)
    assert "rank 2 has no GPU: local rank 2 of node0, which shows it 2 GPUs" in finding.message


def test_a_gpu_for_each_rank_is_clean() -> None:
    assert codes(launch(*(process(rank, devices=gpus(2)) for rank in (0, 1)))) == []


def test_a_launcher_that_shows_each_rank_one_gpu_is_clean() -> None:
    ranks = [process(rank, devices=(gpus(2)[rank],)) for rank in (0, 1)]

    assert results(launch(*ranks))["DD402"].outcome is Outcome.CLEAN


def test_the_same_numbers_on_two_hosts_are_other_gpus() -> None:
    ranks = [process(r, f"node{r}", local_rank=0, devices=gpus(1), device=0) for r in (0, 1)]

    assert codes(launch(*ranks)) == []


def test_without_gpus_it_cannot_look() -> None:
    result = results(launch(process(0), process(1)))["DD402"]

    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "no rank sees a GPU")
