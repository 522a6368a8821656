"""What is done otherwise for many ranks and records: columns, and tables made in part."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ddpdoctor.analysis import analyze
from ddpdoctor.columns import Columns
from ddpdoctor.events import Flag
from ddpdoctor.gathering import Gathered
from ddpdoctor.tables import build_tables
from ddpdoctor.tracefile import DETAIL_DTYPE, STEP_DTYPE
from tests.builders import StepTimes, simulate
from tests.test_same_as_plain import SEEDS, untidy


@pytest.mark.parametrize("dtype", [DETAIL_DTYPE, STEP_DTYPE])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_columns_are_the_fields(dtype: np.dtype, count: int) -> None:
    raw = np.random.default_rng(count).integers(0, 256, count * dtype.itemsize, np.uint8)
    records = raw.view(dtype)

    columns = Columns(records)

    for name in dtype.names or ():
        assert columns[name].dtype == records[name].dtype
        assert (columns[name] == records[name]).all()


def test_columns_of_each_second_record() -> None:
    records = np.zeros(9, DETAIL_DTYPE)
    records["seq"] = np.arange(9)

    assert Columns(records[::2])["seq"].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("expected", [1, 5, 100])
def test_parts_are_gathered_as_if_joined(expected: int) -> None:
    """However many and long they are, and whichever is the first with a wide number."""
    draw = np.random.default_rng(expected)
    lengths = [0, 3, 0, *draw.integers(0, 50, 4).tolist(), 1000]
    parts = [draw.integers(0, 2**31, length, np.int32) for length in lengths]
    parts[4] = parts[4].astype(np.int64) + 2**40
    gathered = Gathered(expected)

    for part in parts:
        gathered.add({"number": part, "half": part / 2})

    columns = gathered.columns()
    assert columns["number"].dtype == np.int64
    assert columns["number"].tolist() == np.concatenate(parts).tolist()
    assert columns["half"].tolist() == np.concatenate([part / 2 for part in parts]).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_of_the_calls_is_that_part_of_all(seed: int) -> None:
    tables = build_tables(untidy(seed))
    table = tables.collectives
    draw = np.random.default_rng(seed)

    for chosen in (draw.random(len(table)) < 0.1, np.zeros(len(table), np.bool_)):
        pd.testing.assert_frame_equal(
            tables.calls.where(chosen), table[chosen].reset_index(drop=True)
        )
        pd.testing.assert_frame_equal(
            tables.calls.where(chosen, "seq", "wait_ns"),
            table[chosen][["seq", "wait_ns"]].reset_index(drop=True),
        )
    for rank, own in table.groupby("rank"):
        pd.testing.assert_frame_equal(tables.calls.of_rank(rank), own.reset_index(drop=True))
        (arrival,) = tables.calls.recorded_of(rank, "arrival_ns")
        assert arrival.tolist() == own["arrival_ns"].tolist()
    assert tables.calls.recorded("seq")[0].tolist() == table["seq"].tolist()
    assert len(tables.calls) == len(table)
    assert tables.calls.ranks == table["rank"].unique().tolist()


def test_of_many_ranks_the_late_one_is_found() -> None:
    run = simulate(lambda rank, step: StepTimes(forward=45 if rank == 17 else 5), 40, 12)

    late = {stats.rank: stats.late for stats in analyze(run).ranks}

    assert late[17] is not None
    assert late[17].last_share == 1
    assert late[17].caused_delay_ms == pytest.approx(40)
    for rank in set(late) - {17}:
        assert late[rank] is not None
        assert (late[rank].last_share, late[rank].typical_delay_ms) == (0, 0)
    flags = build_tables(run).calls.recorded("flags")[0]
    assert (flags == int(Flag.BUCKET)).all()
