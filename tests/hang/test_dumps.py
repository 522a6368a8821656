"""Which files are dumps, and of which rank; and what becomes of damaged and foreign ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.hang import dumps, flight_recorder
from ddpdoctor.hang.dumps import rank_in_name, read_dumps
from ddpdoctor.hang.flight_recorder import BadDump, NotADump, parse_dump
from tests.dump_builders import as_json, call, dump, sent, write

CALLS = [call(1, done=True), call(2, at=12)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("_dump_12", 12), ("rank3", 3), ("rank-7.pkl", 7),
        ("fr_Rank_0004.json", 4), ("trace.11", 11), ("job42_rank_1_20261130", 1), ("nothing", None),
        ("host2-dump-5.bin", 5), ("rank_9999999", None), ("rank123456789012", None),
    ],
)  # fmt: skip
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path("/2/job7") / name) == rank


def test_a_pickle_and_json_say_the_same_but_for_the_lines() -> None:
    pickled, plain = parse_dump(pickle.dumps(dump(CALLS))), parse_dump(as_json(CALLS))

    for one in (pickled, plain):
        assert [(c.group, c.seq, c.op, c.done) for c in one.calls] == [
            ("0", 1, "all_reduce", True), ("0", 2, "all_reduce", False),
        ]  # fmt: skip
        assert one.calls[0].inputs == ((4,),)
    assert pickled.calls[1].site is not None
    assert pickled.calls[1].site.text == "train.py:12"
    assert plain.calls[1].site is None


def test_a_send_tells_both_ranks_through_the_group() -> None:
    one = parse_dump(pickle.dumps(dump([sent(1, 0)], {"0": [4, 6]})))

    assert (one.rank, one.calls[0].op, one.calls[0].peer) == (6, "send", 4)


def test_a_rank_that_is_alone_in_a_group_is_known_by_it(tmp_path: Path) -> None:
    path = tmp_path / "dump_without_number"
    path.write_bytes(pickle.dumps(dump(CALLS, {"0": [0, 1, 2], "5": [2]})))

    assert [each.rank for each in read_dumps([path]).ranks] == [2]


def test_what_else_lies_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {0: CALLS, 1: CALLS})
    (tmp_path / "train.log").write_text("rank 5 is slow\n")
    (tmp_path / "empty_5").touch()
    (tmp_path / "config_7.json").write_text('{"lr": 0.1}')
    (tmp_path / "nested").mkdir()
    os.mkfifo(tmp_path / "pipe_9")

    read = read_dumps([tmp_path])

    assert [each.rank for each in read.ranks] == [0, 1]
    assert (read.lost, read.problems) == ((), ())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (pickle.dumps(dump(CALLS), 2)[:-40], "it breaks off"),
        (b"\x80\x02cos\nsystem\n.", "more than plain values"),
        (as_json(CALLS)[:-40], "not as expected"),
    ],
    ids=["empty", "truncated", "with a class", "half of a JSON"],
)
def test_a_damaged_dump_is_evidence_and_the_others_are_read(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    write(tmp_path, {0: CALLS, 2: CALLS})
    (tmp_path / "nccl_trace_rank_1").write_bytes(content)

    read = read_dumps([tmp_path])

    assert [each.rank for each in read.ranks] == [0, 2]
    (lost,) = read.lost
    assert lost.rank == 1
    assert reason in (lost.reason or "")
    assert any("nccl_trace_rank_1" in problem and reason in problem for problem in read.problems)


def test_a_foreign_pickle_beside_the_dumps_is_named_and_is_no_rank(tmp_path: Path) -> None:
    write(tmp_path, {0: CALLS, 1: CALLS})
    (tmp_path / "optimizer_7.pkl").write_bytes(pickle.dumps({"lr": {1, 2}}))

    read = read_dumps([tmp_path])

    assert read.lost == ()
    assert "optimizer_7.pkl: it holds more than plain values" in read.problems[0]


def test_a_rank_without_a_dump_is_known_by_the_others(tmp_path: Path) -> None:
    told = write(tmp_path / "told", {0: CALLS, 1: CALLS}, g0=[0, 1, 2, 3])
    gap = write(tmp_path / "gap", {0: CALLS, 3: CALLS})

    assert [lost.rank for lost in read_dumps([told]).lost] == [2, 3]
    assert [lost.rank for lost in read_dumps([gap]).lost] == [1, 2]
    assert read_dumps([gap]).problems == ("no dump of ranks 1 and 2 was found",)


def test_of_two_dumps_of_a_rank_the_newer_one_counts(tmp_path: Path) -> None:
    (tmp_path / "a_rank0").write_bytes(pickle.dumps(dump([*CALLS, call(3)])))
    (tmp_path / "b_rank0").write_bytes(pickle.dumps(dump(CALLS)))

    read = read_dumps([tmp_path])

    assert [len(each.calls) for each in read.ranks] == [3]
    assert "several dumps" in read.problems[0]


def test_files_by_name(tmp_path: Path) -> None:
    write(tmp_path, {0: CALLS, 1: CALLS, 2: CALLS})

    read = read_dumps([tmp_path / "nccl_trace_rank_0", tmp_path / "nccl_trace_rank_2"])

    assert [each.rank for each in read.ranks] == [0, 2]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rank0", b"", "it is empty"),
        ("rank0", b"PK\x03\x04", "it is no dump"),
        ("rank0", pickle.dumps([1]), "it is no dump"),
        ("rank0", b"{}", "it is no dump"),
        ("nothing", pickle.dumps(dump(CALLS)), "tells the rank"),
        ("rank0", b"\x80\x02" + b"X\xff\xff\xff\x7f", "a text of"),
    ],
)
def test_a_single_file_that_does_not_serve_says_why(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(NothingToDiagnose, match=f"{name}.*{reason}"):
        read_dumps([path])


def test_an_unrelated_folder_and_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(NothingToDiagnose, match="neither a recorded run nor dumps"):
        read_dumps([tmp_path])
    with pytest.raises(NothingToDiagnose, match="cannot be read"):
        read_dumps([tmp_path / "absent"])


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "MAX_BYTES", 1000)
    write(tmp_path, {0: CALLS * 10})

    with pytest.raises(NothingToDiagnose, match="larger than"):
        read_dumps([tmp_path])


def changed(**changes: Any) -> dict[str, Any]:
    return dump([call(1)]) | changes


@pytest.mark.parametrize(
    "content",
    [
        changed(entries=5), changed(entries=[5]), changed(entries=[{}]), changed(version=7),
        changed(pg_config=[]), changed(pg_config={"0": {"name": "x" * 10_000}}),
        changed(entries=[call(2**70)]), changed(entries=[call(1, process_group=[])]),
        changed(entries=[call(1, input_sizes=[["\x1b[2J"]])]),
        changed(entries=[call(1, profiling_name="x" * 10_000)]),
        changed(entries=[call(1, frames=[{"filename": 3}])]),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_dump_that_is_not_as_expected_is_bad_in_both_forms(content: dict[str, Any]) -> None:
    with pytest.raises((BadDump, NotADump)):
        parse_dump(pickle.dumps(content))
    with pytest.raises((BadDump, NotADump)):
        parse_dump(json.dumps(content).encode())


def test_groups_and_places_that_cannot_be_are_none() -> None:
    content = dump([sent(3, 9)], {"0": [0, 1]})
    content["pg_config"]["1"] = {"name": "1", "ranks": "__import__('os')"}

    one = parse_dump(pickle.dumps(content))

    assert [group.members for group in one.groups] == [(0, 1), ()]
    assert (one.rank, one.calls[0].peer) == (None, None)


def test_what_is_kept_of_a_call_is_bounded() -> None:
    many = [[1] * 60] * 300
    one = parse_dump(as_json([call(1, input_sizes=many, input_dtypes=["Float"] * 300)]))

    assert len(one.calls[0].inputs) == len(one.calls[0].dtypes) == flight_recorder.MAX_SIZES
    assert len(one.calls[0].inputs[0]) == flight_recorder.MAX_SIZES


def test_too_many_calls_and_deep_json_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadDump):
        parse_dump(b'{"version": "2", "entries": [' + b"[" * 100_000)
    with pytest.raises(BadDump):
        parse_dump(b'{"version": "2", "other": ' + b"[" * 100_000)
    with pytest.raises(BadDump):
        parse_dump(pickle.dumps(dump([call(1, frames=[{}] * (flight_recorder.MAX_FRAMES + 1))])))


def test_many_large_dumps_are_read_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "dumps", dict.fromkeys(range(6), CALLS), g0=list(range(6)))
    (folder / "nccl_trace_rank_2").write_bytes(b"\x80\x02(c__main__\nevil\n.")
    alone = read_dumps([folder])
    monkeypatch.setattr(dumps, "WORTH_WORKERS", 0)
    monkeypatch.setattr(dumps.os, "cpu_count", lambda: 2)

    together = read_dumps([folder])

    assert together == alone
    assert len(together.ranks) == 5
    assert "nccl_trace_rank_2" in together.problems[0]
