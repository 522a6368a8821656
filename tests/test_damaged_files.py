"""Rank files that a disk, a copy or an enemy has changed: a report or one clear error, no crash."""

from __future__ import annotations

import io
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from ddpdoctor.analysis import analyze
from ddpdoctor.analysis.details import call_detail, span_detail
from ddpdoctor.analysis.headline import headline
from ddpdoctor.analysis.tiles import Bins, phase_tile
from ddpdoctor.analysis.windowed import window_table
from ddpdoctor.checks import Outcome, run_checks
from ddpdoctor.dashboards.figures import rank_bars
from ddpdoctor.dashboards.shown import Shown
from ddpdoctor.dashboards.wire import encode, mark_columns, step_columns, window_columns
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.events import DETAIL_RECORD, Kind
from ddpdoctor.report import run_report, to_json
from ddpdoctor.report_text import render
from ddpdoctor.tracefile import DETAIL_DTYPE, load_run, read_header
from tests.launching import ROOT

SAMPLES = ROOT / "sample_traces"
FIELDS = DETAIL_DTYPE.names or ()
INTERESTING = (0, 1, 2, 3, 7, 127, 128, 255)


def look_at_all_of_it(folder: Path) -> None:
    """What `report` and the dashboard do with a run; no check may crash, nothing may warn."""
    analysis = analyze(load_run(folder))
    report = run_report(analysis, run_checks(analysis))
    render(report, Console(file=io.StringIO(), width=100))
    to_json(report)
    assert [r.reason for r in report.results if r.outcome is Outcome.CRASH] == []
    shown = Shown(report)
    shown.prepare()
    timeline, rows = shown.timeline, np.arange(len(analysis.run.ranks))
    spans, calls = timeline.window(0, timeline.duration_ms, rows)
    encode(window_columns(spans, calls) | mark_columns(timeline.marks))
    window_table(timeline, 0, timeline.duration_ms, rows)
    encode(step_columns(shown.series))
    bins = Bins(0, max(1.0, timeline.duration_ms / 50), 50)
    phase_tile(shown.changes, rows, bins)
    span_detail(timeline, 0)
    call_detail(timeline, 0)
    headline(analysis)
    rank_bars(analysis.ranks, "light")


def copy_of(sample: str, folder: Path) -> Path:
    copy = folder / sample
    shutil.copytree(SAMPLES / sample, copy)
    return copy


def change(path: Path, changes: dict[int, int]) -> None:
    raw = bytearray(path.read_bytes())
    for position, value in changes.items():
        raw[position % len(raw)] = value
    path.write_bytes(raw)


flips = st.dictionaries(
    st.integers(0, 40_000), st.integers(0, 255) | st.sampled_from(INTERESTING), min_size=1,
    max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("sample", ["late-rank", "hang"])
@given(flips=flips, rank=st.integers(0, 1))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_flipped_bytes_give_a_report_or_one_error(
    sample: str, flips: dict[int, int], rank: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(sample, tmp_path_factory.mktemp("flipped"))
    change(folder / f"rank{rank:05d}.ddt", flips)

    with suppress(DdpDoctorError):
        look_at_all_of_it(folder)


@pytest.mark.parametrize("sample", ["repeated-samples", "input-bound"])
@given(flips=flips, every=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_flipped_bytes_in_facts_give_a_report(
    sample: str, flips: dict[int, int], every: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(sample, tmp_path_factory.mktemp("facts"))
    for path in sorted(folder.glob("*.jsonl"))[: None if every else 1]:
        change(path, flips)

    look_at_all_of_it(folder)


values = st.sampled_from(
    [0, 1, 2, 5, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -1, -(2**63)]
)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(FIELDS), values), min_size=1, max_size=12
    ),
    only_steps=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_in_any_field_gives_a_report(
    changes: list[tuple[int, str, int]],
    only_steps: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = copy_of("late-rank", tmp_path_factory.mktemp("field"))
    path = folder / "rank00001.ddt"
    detail = records_of(path)
    rows = np.flatnonzero(detail["kind"] == Kind.STEP) if only_steps else np.arange(len(detail))
    for row, field, value in changes:
        item = detail.dtype[field]
        detail[field][rows[row % len(rows)]] = np.array(value).astype(item)
    write_records(path, detail)

    look_at_all_of_it(folder)


def records_of(path: Path) -> np.ndarray:
    """The detail records as they lie in a closed file, to be changed."""
    region = read_header(path).detail
    raw = path.read_bytes()[region.offset : region.offset + region.records * DETAIL_RECORD.size]
    return np.frombuffer(raw, DETAIL_DTYPE).copy()


def write_records(path: Path, detail: np.ndarray) -> None:
    offset = read_header(path).detail.offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(detail.tobytes())
