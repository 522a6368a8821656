"""What one process writes, another reads: whole, cut off, foreign, or while it is written."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor import events
from ddpdoctor.errors import BadTraceFile, NotARun
from ddpdoctor.events import (
    DETAIL_RECORD,
    HEADER_SPACE,
    STEP_RECORD,
    GroupInfo,
    HotLine,
    Kind,
    Phase,
    RunInfo,
    Site,
)
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.writer import DETAIL_BYTES, RING_RECORDS, STEP_ROWS, RankFile
from ddpdoctor.runfolders import list_runs
from ddpdoctor.tracefile import load_run, read_rank
from tests.builders import rank_info

RUN = RunInfo("run-1", 0, 2, "gloo")


def rank_path(folder: Path, rank: int = 0) -> Path:
    attempt = folder / "run-1" / "attempt-0"
    attempt.mkdir(parents=True, exist_ok=True)
    return attempt / f"rank{rank:05d}.ddt"


def open_file(folder: Path, rank: int = 0, **options: int) -> RankFile:
    return RankFile(rank_path(folder, rank), RUN, rank_info(rank, 2), **options)


def add_span(file: RankFile, step: int) -> int:
    return file.add(
        Kind.SPAN, Phase.FORWARD, 0, 0, step, step, 0, 0, -1, 0, -1, 100 + step, 0, 0, 0
    )


def write_run(folder: Path, spans: int = 5) -> list[Path]:
    for rank in range(2):
        file = open_file(folder, rank)
        for step in range(spans):
            file.finish(add_span(file, step), 200 + step)
        file.close()
    return [rank_path(folder, rank) for rank in range(2)]


@pytest.mark.parametrize("close", [True, False])
def test_what_was_written_is_read(close: bool, tmp_path: Path) -> None:
    """Also from a file that nobody closed, as a killed rank leaves it."""
    file = open_file(tmp_path)
    serials = [add_span(file, step) for step in range(10)]
    for serial in serials[:-1]:
        file.finish(serial, 1000 + serial)
    file.add_step((3, 10, 20, 30, 40, 50, 60, 4))
    if close:
        file.close()
    else:
        file.flush()

    header, trace = read_rank(rank_path(tmp_path))

    assert header.run == RUN
    assert trace.info == rank_info(0, 2)
    assert trace.closed is close
    assert trace.detail["commit"].tolist() == serials
    assert trace.detail["begin_ns"].tolist() == [100 + step for step in range(10)]
    assert trace.detail["end_ns"].tolist() == [1000 + s for s in serials[:-1]] + [0]
    assert trace.steps.tolist() == [(3, 10, 20, 30, 40, 50, 60, 4)]


def ends_in_the_file(folder: Path) -> list[int]:
    _, trace = read_rank(rank_path(folder))
    ends: list[int] = trace.detail["end_ns"].tolist()
    return ends


def test_what_begins_is_in_the_file_at_once_and_all_before_it(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    first = add_span(file, 0)
    assert ends_in_the_file(tmp_path) == [0]

    file.finish(first, 200)
    file.add(Kind.COLLECTIVE, 1, 0, 0, 0, 0, 7, 0, 2, 0, -1, 150, 0, 0, 64)  # DDP's bucket 2
    add_span(file, 0)

    assert ends_in_the_file(tmp_path) == [200, 0, 0]


def test_the_end_of_what_took_a_millisecond_is_in_the_file_at_once(tmp_path: Path) -> None:
    file = open_file(tmp_path)

    file.finish(add_span(file, 0), 2_000_000)

    assert ends_in_the_file(tmp_path) == [2_000_000]


def test_a_closed_file_is_small(tmp_path: Path) -> None:
    path, _ = write_run(tmp_path, spans=5)

    assert path.stat().st_size < 4096


@given(
    steps=st.integers(0, 3 * RING_RECORDS),
    records_a_step=st.integers(1, 3),
    budget=st.integers(64, 2 * RING_RECORDS),
)
@settings(max_examples=25, deadline=None)
def test_past_the_budget_every_2_to_the_k_th_step_stays_and_the_newest_records(
    steps: int, records_a_step: int, budget: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("budget")
    file = open_file(folder, detail_bytes=budget * 64)
    for step in range(steps):
        for _ in range(records_a_step):
            file.finish(add_span(file, step), 1000 + step)
    stride = file.stride
    file.close()

    _, trace = read_rank(rank_path(folder))

    kept, counts = np.unique(trace.detail["step"], return_counts=True)
    strided = range(0, steps, stride)
    assert set(strided) <= set(kept.tolist())
    assert (counts[np.isin(kept, strided)] == records_a_step).all()
    assert len(strided) * records_a_step <= budget
    assert len(np.unique(trace.detail["commit"])) == len(trace.detail)
    assert (trace.detail["end_ns"] == 1000 + trace.detail["step"]).all()
    if steps:
        assert kept[-1] == steps - 1


def test_a_collective_that_completes_after_the_detail_was_thinned_out_is_completed(
    tmp_path: Path,
) -> None:
    file = open_file(tmp_path, detail_bytes=64 * 64)
    serials = {step: add_span(file, step) for step in range(100)}
    for step, serial in serials.items():
        file.finish(serial, 1000 + step)
    file.close()

    _, trace = read_rank(rank_path(tmp_path))

    assert (trace.detail["end_ns"] == 1000 + trace.detail["step"]).all()


def test_a_record_that_stays_open_while_thousands_pass_is_never_mistaken(tmp_path: Path) -> None:
    file = open_file(tmp_path, detail_bytes=256 * 64)
    forgotten = add_span(file, 1)
    for step in range(2, 5 * RING_RECORDS):
        file.finish(add_span(file, step), 1000 + step)
    file.finish(forgotten, 77)
    file.close()

    _, trace = read_rank(rank_path(tmp_path))

    assert 77 not in trace.detail["end_ns"]
    assert (trace.detail["end_ns"] == 1000 + trace.detail["step"]).all()


def test_more_than_a_million_steps_stay_within_the_budget(tmp_path: Path) -> None:
    """Every second step stays in detail, and rows are joined so that the times add up to all."""
    file = open_file(tmp_path)
    steps = STEP_ROWS + 50_000
    for step in range(steps):
        file.add(
            Kind.SPAN, Phase.FORWARD, 0, 0, step, step, 0, 0, -1, 0, -1, 100 + step, 0,
            1000 + step, 0,
        )  # fmt: skip
        file.add_step((step, 1, 2, 3, 4, 5, 6, step + 1))
    taken = rank_path(tmp_path).stat().st_size
    file.close()

    _, trace = read_rank(rank_path(tmp_path))

    ring = RING_RECORDS * DETAIL_RECORD.size
    assert taken <= HEADER_SPACE + ring + STEP_ROWS * STEP_RECORD.size + DETAIL_BYTES
    assert rank_path(tmp_path).stat().st_size <= taken
    assert len(trace.steps) <= STEP_ROWS
    assert trace.steps["input_us"].sum() == steps
    assert trace.steps["between_us"].sum() == 6 * steps
    assert trace.steps["sync"][-1] == steps
    assert file.stride == 2
    assert np.isin(np.arange(0, steps, 2), trace.detail["step"]).all()
    assert trace.detail["step"][-1] == steps - 1


def test_a_reader_beside_a_writer_sees_whole_records(tmp_path: Path) -> None:
    """While the detail is thinned out again and again."""
    file = open_file(tmp_path, detail_bytes=512 * 64)
    enough = threading.Event()

    def write() -> None:
        step = 0
        while not enough.is_set():
            file.finish(add_span(file, step), 1000 + step)
            step += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            _, trace = read_rank(rank_path(tmp_path))
            ended = trace.detail[trace.detail["end_ns"] > 0]
            assert (ended["end_ns"] == 1000 + ended["step"]).all()
            assert (trace.detail["begin_ns"] == 100 + trace.detail["step"]).all()
    finally:
        enough.set()
        writer.join()
    assert file.stride > 1
    file.close()


@pytest.mark.parametrize("size", [0, 500])
def test_a_file_that_another_process_truncates_is_told_at_the_end(
    size: int, tmp_path: Path
) -> None:
    file = open_file(tmp_path)
    add_span(file, 0)
    os.truncate(rank_path(tmp_path), size)

    add_span(file, 1)
    with pytest.raises(OSError, match=r"rank00000\.ddt was truncated while it was written"):
        file.close()


def test_a_file_that_is_removed_meanwhile_is_told_at_the_end(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    rank_path(tmp_path).unlink()

    add_span(file, 1)
    with pytest.raises(OSError, match=r"rank00000\.ddt was removed while it was written"):
        file.close()

    assert not list(tmp_path.rglob("*.ddt"))


def test_why_recording_stopped_is_read(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.stop("OSError: No space left on device")

    _, trace = read_rank(rank_path(tmp_path))

    assert trace.notes == ("recording ended before the training: OSError: No space left on device",)


def test_threads_write_beside_each_other(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    threads = [
        threading.Thread(target=lambda: [add_span(file, step) for step in range(5000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()

    _, trace = read_rank(rank_path(tmp_path))

    assert trace.detail["commit"].tolist() == list(range(1, 20_001))


def test_facts_are_read_and_later_ones_replace_earlier(tmp_path: Path) -> None:
    path, _ = write_run(tmp_path)
    facts = FactsFile(path.with_suffix(".facts.jsonl"))
    facts.group(GroupInfo("0", (0, 1)))
    site = Site("train.py", 3, "main")
    facts.site(1, site)
    facts.hot_lines([HotLine(Phase.INPUT, site, 1)])
    facts.hot_lines([HotLine(Phase.INPUT, site, 9)])
    facts.note("a note")
    facts.close()

    _, trace = read_rank(path)

    assert trace.groups == (GroupInfo("0", (0, 1)),)
    assert trace.sites == {1: site}
    assert trace.hot_lines == (HotLine(Phase.INPUT, site, 9),)
    assert trace.notes == ("a note",)


def test_a_line_of_facts_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path, _ = write_run(tmp_path)
    path.with_suffix(".facts.jsonl").write_text('{"fact": "note", "data": "whole"}\n{"fact": "no')

    _, trace = read_rank(path)

    assert trace.notes == ("whole",)


@pytest.mark.parametrize("line", ["[]", '{"fact": "site", "data": {"id": "x"}}', "\x00", "{}"])
def test_a_bad_line_of_facts_is_a_note(line: str, tmp_path: Path) -> None:
    path, _ = write_run(tmp_path)
    path.with_suffix(".facts.jsonl").write_text(line + '\n{"fact": "note", "data": "after"}\n')

    _, trace = read_rank(path)

    assert trace.notes[0].startswith("rank00000.facts.jsonl:1: cannot be read")
    assert trace.notes[1] == "after"


@pytest.mark.parametrize("size", [0, 7, 16, 40, 1000])
def test_a_truncated_file_is_named_and_the_other_rank_still_read(size: int, tmp_path: Path) -> None:
    bad, _ = write_run(tmp_path)
    os.truncate(bad, size)

    run = load_run(tmp_path / "run-1")

    assert [trace.info.rank for trace in run.ranks] == [1]
    assert any(str(bad) in problem for problem in run.problems)


def test_only_bad_files_are_an_error(tmp_path: Path) -> None:
    for path in write_run(tmp_path):
        path.write_bytes(b"not a rank file, but long enough")

    with pytest.raises(BadTraceFile, match="is not a rank file of ddpdoctor"):
        load_run(tmp_path / "run-1")


def test_a_newer_schema_says_to_upgrade(tmp_path: Path) -> None:
    path, _ = write_run(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[8:12] = (events.SCHEMA_VERSION + 1).to_bytes(4, "little")
    path.write_bytes(raw)

    with pytest.raises(BadTraceFile, match=r"newer ddpdoctor .* upgrade"):
        read_rank(path)


@pytest.mark.parametrize(
    ("region", "problem"),
    [
        ({"offset": -1, "records": 1}, "impossible region"),
        ({"offset": 0, "records": 2**60}, "impossible region"),
        ({"offset": 0, "records": 2**24}, "truncated"),
    ],
)
def test_a_header_that_lies_fills_no_memory(region: dict, problem: str, tmp_path: Path) -> None:
    path, _ = write_run(tmp_path)
    _, _, length = events.PREAMBLE.unpack(path.read_bytes()[:16])
    header = json.loads(path.read_bytes()[16 : 16 + length])
    raw = json.dumps(header | {"detail": region}).encode()
    path.write_bytes(events.PREAMBLE.pack(events.MAGIC, 1, len(raw)) + raw + bytes(1000))

    with pytest.raises(BadTraceFile, match=problem):
        read_rank(path)


@given(position=st.integers(0, 2000), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_is_read_or_refused(
    position: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path, _ = write_run(folder)
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] = value
    path.write_bytes(raw)

    try:
        _, trace = read_rank(path)
    except BadTraceFile:
        return
    assert len(trace.detail) <= 5


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    write_run(tmp_path)[1].unlink()

    run = load_run(tmp_path / "run-1")

    assert run.problems == (
        "no file of rank 1 (1 of 2 ranks read): waits for a rank that is missing cannot be seen",
    )


def test_a_file_of_another_run_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    other = tmp_path / "other.ddt"
    RankFile(other, replace(RUN, run_id="run-2"), rank_info(1, 2)).close()
    other.replace(rank_path(tmp_path, 1))

    run = load_run(tmp_path / "run-1")

    assert [trace.info.rank for trace in run.ranks] == [0]
    assert "belongs to another run (run-2)" in run.problems[0]


@pytest.mark.parametrize("kind", ["nothing", "a file", "an empty folder"])
def test_what_is_no_run_is_one_clear_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "place"
    if kind == "a file":
        path.touch()
    elif kind == "an empty folder":
        path.mkdir()

    with pytest.raises(NotARun, match=str(path)):
        load_run(path)


def test_the_newest_run_and_its_newest_attempt_are_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_DIR", str(tmp_path))
    for number, name in enumerate(["b-older", "a-newer"]):
        for attempt in (0, 2, 10):
            folder = tmp_path / name / f"attempt-{attempt}"
            folder.mkdir(parents=True)
            RankFile(folder / "rank00000.ddt", replace(RUN, run_id=name), rank_info(0, 2)).close()
        os.utime(tmp_path / name, (1000 + number, 1000 + number))

    assert [path.name for path in list_runs()] == ["b-older", "a-newer"]
    assert load_run().path == tmp_path / "a-newer" / "attempt-10"


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    open_file(tmp_path).close()

    with pytest.raises(FileExistsError):
        open_file(tmp_path)
