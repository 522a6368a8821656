"""DD306 unsharded-iterable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.recorder.streamed import Stream
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, own_loader, result_of, simulate, with_ranks

STREAM = {"iterable": True, "sampler_replicas": None, "sampler_rank": None, "dataset": "Lines"}


def batches(items: Sequence[int], size: int = 8) -> list[torch.Tensor]:
    """Samples that hold their item, in batches."""
    cut = [items[at : at + size] for at in range(0, len(items), size)]
    return [torch.tensor(batch, dtype=torch.float32)[:, None].expand(-1, 4) for batch in cut]


def run_with(delivered: Sequence[list[torch.Tensor]], workers: int = 0) -> Run:
    """A run in which each rank's stream delivered these batches."""

    def add(trace):
        stream = Stream()
        for batch in delivered[trace.info.rank]:
            stream.delivers(batch)
        summary = stream.summary(0, 0)
        own = own_loader(trace, workers=workers, **STREAM)
        return replace(trace, loaders={0: own}, streamed=(summary,) if summary else ())

    return with_ranks(simulate(lambda r, s: StepTimes(), len(delivered), 12), add)


def test_every_rank_reads_the_whole_stream() -> None:
    (finding,) = result_of("DD306", run_with([batches(range(400))] * 4)).findings

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits == (0, 1, 2, 3)
    assert "100 % of what a rank read" in finding.message
    assert "Lines.__iter__" in finding.fix


def test_a_stream_that_is_split_by_rank_is_clean() -> None:
    run = run_with([batches(range(rank, 400, 4)) for rank in range(4)])

    assert result_of("DD306", run).outcome is Outcome.CLEAN


def test_ranks_that_shuffle_the_same_stream_each_in_its_way() -> None:
    shuffled = [np.random.default_rng(rank).permutation(400).tolist() for rank in range(2)]

    (finding,) = result_of("DD306", run_with([batches(items) for items in shuffled])).findings

    assert finding.culprits == (0, 1)


def test_more_samples_than_are_kept() -> None:
    same = run_with([batches(range(4096), 64)] * 2)
    split = run_with([batches(range(rank, 8192, 2), 64) for rank in range(2)])

    assert result_of("DD306", same).outcome is Outcome.FINDINGS
    assert result_of("DD306", split).outcome is Outcome.CLEAN


def test_only_ranks_that_share_are_named() -> None:
    run = run_with([batches(range(first, first + 200)) for first in (0, 1000, 0)])

    assert result_of("DD306", run).findings[0].culprits == (0, 2)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_all_read_the_rank_s_whole_part(workers: int) -> None:
    """They deliver in turn."""
    delivered = [
        [batch for batch in batches(range(rank, 400, 2)) for _ in range(workers)]
        for rank in range(2)
    ]

    (finding,) = result_of("DD306", run_with(delivered, workers)).findings

    assert f"the {workers} workers of ranks 0 and 1 deliver the same batches" in finding.message


def test_neither_split_by_rank_nor_by_worker() -> None:
    delivered = [[batch for batch in batches(range(400)) for _ in range(2)]] * 2

    assert len(result_of("DD306", run_with(delivered, workers=2)).findings) == 2


def test_workers_that_split_it_are_clean() -> None:
    delivered = [batches(range(rank, 400, 2)) for rank in range(2)]

    assert result_of("DD306", run_with(delivered, workers=2)).outcome is Outcome.CLEAN


def test_constant_data_is_skipped() -> None:
    run = run_with([[torch.zeros(8, 4)] * 20] * 2)

    assert result_of("DD306", run).outcome is Outcome.SKIPPED


def test_without_a_stream_it_is_skipped() -> None:
    assert result_of("DD306", simulate(lambda r, s: StepTimes())).outcome is Outcome.SKIPPED
