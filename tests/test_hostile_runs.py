"""Runs written by others, with ill will or by accident: they are shown as text, or refused."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import Outcome, run_checks
from ddpdoctor.errors import BadTraceFile
from ddpdoctor.events import Kind
from ddpdoctor.report import run_report
from ddpdoctor.report_text import render
from ddpdoctor.tracefile import Run, load_run, read_rank
from tests.builders import MS, StepTimes, simulate, with_ranks
from tests.launching import Finished, ddpdoctor, environment, finish
from tests.stored import store, store_rank

ESCAPES = "\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202e\u2028\n"


def small_run(ranks: int = 2, steps: int = 12) -> Run:
    return simulate(lambda rank, step: StepTimes(), ranks, steps)


def report(folder: Path, *options: str, **variables: str) -> Finished:
    env = environment(NO_COLOR="1", **variables)
    return finish(ddpdoctor("report", str(folder), *options), folder, env, seconds=60)


def of_rank(**facts: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["rank"].update(facts)

    return change


def of_run(**facts: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["run"].update(facts)

    return change


@pytest.mark.parametrize("host", ["[/nope]", "[bold]node[/bold]", "[link=file:///x]n[/link]", "[]"])
def test_markup_in_names_is_text(host: str, tmp_path: Path) -> None:
    done = report(store(small_run(), tmp_path / "run", of_rank(host=host)))

    assert done.status == 0
    assert host in done.out


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    run = with_ranks(
        small_run(),
        lambda trace: replace(
            trace,
            notes=(f"note{ESCAPES}",),
            info=replace(
                trace.info,
                host=f"host{ESCAPES}",
                environment={f"NCCL{ESCAPES}": f"{ESCAPES}{'ab'[trace.info.rank]}"},
                versions={"torch": f"{ESCAPES}{'ab'[trace.info.rank]}"},
            ),
        ),
    )
    folder = store(run, tmp_path / "run", of_run(run_id=f"id{ESCAPES}", backend=f"gloo{ESCAPES}"))

    done = report(folder)

    assert done.status == 1
    assert all(character == "\n" or character.isprintable() for character in done.out + done.err)
    assert r"\x1b[31mred" in done.out
    assert done.out.count("\nnote: ") == 2  # a line break in a note begins no line


def test_control_characters_in_errors_and_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "ddpdoctor_runs" / "a\x1b[31m"
    (folder / "attempt-0").mkdir(parents=True)
    (folder / "attempt-0" / "rank00000.ddt").write_bytes(b"no")

    for arguments in (("report",), ("runs",), ("explain", "\x1b[31m"), ("report", "a", "\x1b[1m")):
        done = finish(ddpdoctor(*arguments), tmp_path)

        assert "\x1b" not in done.out + done.err
        if len(arguments) < 3:  # click drops the sequences in its own messages
            assert r"\x1b[" in done.out + done.err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_file_name_that_is_no_text_is_shown(encoding: str, tmp_path: Path) -> None:
    folder = store(small_run(), tmp_path / "run")
    Path(os.fsdecode(os.fsencode(folder) + b"/rank\xff.ddt")).write_bytes(b"no rank file")

    done = report(folder, PYTHONIOENCODING=encoding)

    assert done.status == 0
    assert r"rank\xff.ddt: ends after 12 bytes" in " ".join(done.out.split())


@pytest.mark.parametrize(
    "change",
    [
        *(of_run(world_size=size) for size in (10**12, 2**70, 0, -1)),
        *(of_rank(rank=rank) for rank in (-1, 2, 2**70, 10**400)),
        of_rank(world_size=0),
        of_rank(began_ns=2**63),
        of_rank(wall_minus_monotonic_ns=-(2**64)),
        lambda header: header["detail"].update(offset=2**70),
        lambda header: header["detail"].update(records=2**70),
        lambda header: header["ring"].update(offset=10**400),
    ],
)
def test_numbers_out_of_range_are_a_bad_file(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    folder = store(small_run(), tmp_path / "run", change)

    with pytest.raises(BadTraceFile, match=r"rank00000\.ddt: "):
        load_run(folder)


def test_a_header_of_nested_lists_is_a_bad_file(tmp_path: Path) -> None:
    folder = store(small_run(), tmp_path / "run")
    path = folder / "rank00000.ddt"
    raw = bytearray(path.read_bytes())
    raw[16:60_000] = b"[" * (60_000 - 16)
    path.write_bytes(raw)

    assert [trace.info.rank for trace in load_run(folder).ranks] == [1]


def test_a_world_of_a_million_ranks_is_said_in_a_line(tmp_path: Path) -> None:
    folder = store(small_run(), tmp_path / "run", of_run(world_size=1_000_000))

    (problem,) = load_run(folder).problems

    assert problem.startswith("no file of rank 2, 3, 4, 5, 6, 7, 8, 9, … (2 of 1000000 ranks read)")


@pytest.mark.parametrize(
    "line",
    [
        '{"fact": "cost", "data": {"hooks_ns": 1%s, "steps": 3}}' % ("0" * 400),
        '{"fact": "cost", "data": {"hooks_ns": 1%s, "steps": 3}}' % ("0" * 9000),
        '{"fact": "cost", "data": {"hooks_ns": -1, "steps": 3}}',
        '{"fact": "note", "data": %s' % ("[" * 100_000),
        "[" * 100_000,
        '{"fact": "group", "data": {"name": "1", "ranks": [1180591620717411303424]}}',
        '{"fact": "drawn", "data": {"loader": 0, "epoch": 0, "drawn": 20, "threshold": 0.0, '
        '"indices": [], "contents": []}}',
        '{"fact": "drawn", "data": {"loader": 0, "epoch": 0, "drawn": 20, "threshold": 1.0, '
        '"indices": [1], "contents": []}}',
        '{"fact": "drawn", "data": {"loader": 0, "epoch": 0, "drawn": 20, "threshold": 1.0, '
        '"indices": [18446744073709551616], "contents": [null]}}',
        '{"fact": "drawn", "data": {"loader": 0, "epoch": 0, "drawn": 20, "threshold": 1.0, '
        '"indices": [1], "contents": [null], "levels": [0.5, 0.5]}}',
        '{"fact": "end", "data": {"kind": "exception", "at_ns": -1, "step": 1, "phase": 0}}',
        '{"fact": "end", "data": {"kind": "evaporated", "at_ns": 1, "step": 1, "phase": 0}}',
        '{"fact": "stall", "data": {"phase": 0, "site": null, "seconds": 1e400}}',
        '{"fact": "stall", "data": {"phase": 0, "site": null, "seconds": 5, "pending": [{}]}}',
    ],
    ids=range(14),
)
def test_absurd_facts_are_a_note(line: str, tmp_path: Path) -> None:
    folder = store(small_run(), tmp_path / "run")
    path = folder / "rank00000.facts.jsonl"
    path.write_text(line + "\n" + path.read_text())

    analysis = analyze(load_run(folder))

    (note,) = analysis.run.ranks[0].notes
    assert note.startswith("rank00000.facts.jsonl:1: cannot be read: ")
    assert not [r for r in run_checks(analysis) if r.outcome is Outcome.CRASH]


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    folder = store(small_run(), tmp_path / "run")
    (folder / "rank00000.facts.jsonl").write_text("bad\n" * 1000)

    notes = load_run(folder).ranks[0].notes

    assert len(notes) == 21
    assert notes[-1] == "rank00000.facts.jsonl: 980 more lines cannot be read"


def test_of_two_files_of_one_rank_the_second_is_left_out(tmp_path: Path) -> None:
    run = small_run()
    folder = store(run, tmp_path / "run")
    again = folder / "rank00007.ddt"
    store_rank(run, run.ranks[0], again)

    read = load_run(folder)
    done = report(folder)

    assert [trace.info.rank for trace in read.ranks] == [0, 1]
    assert read.problems == (f"{again}: is of rank 0, as rank00000.ddt is; left out",)
    assert done.status == 0
    assert "left out" in done.out


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [a_pipe, a_device, a_socket, Path.mkdir])
@pytest.mark.parametrize("name", ["rank00000.ddt", "rank00000.facts.jsonl"])
def test_what_is_no_plain_file_is_not_opened(
    make: Callable[[Path], None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store(small_run(), tmp_path / "run")
    monkeypatch.chdir(folder)  # the path of a socket must be short
    Path(name).unlink()
    make(Path(name))

    run = load_run(folder)

    said = [*run.problems, *(note for trace in run.ranks for note in trace.notes)]
    assert any(f"{name}: cannot be read (it is not a regular file)" in each for each in said)


def test_damaged_records_are_left_out_and_counted(tmp_path: Path) -> None:
    run = small_run(steps=20)
    detail = run.ranks[0].detail.copy()
    steps = np.flatnonzero(detail["kind"] == Kind.STEP)
    calls = np.flatnonzero(detail["kind"] == Kind.COLLECTIVE)
    spans = np.flatnonzero(detail["kind"] == Kind.SPAN)
    detail["end_ns"][steps[3]] = detail["begin_ns"][steps[3]] - 1
    detail["step"][steps[5]] = detail["step"][steps[4]]
    detail["end_ns"][steps[7]] += 10**15  # covers all that follow
    detail["end_ns"][steps[8]] = 2**62
    detail["code"][calls[0]] = 200
    detail["code"][spans[0]] = 6  # WAIT is derived, never recorded
    detail["kind"][spans[1]] = 9
    detail["seq"][calls[3]] = detail["seq"][calls[2]]
    damaged = replace(run, ranks=(replace(run.ranks[0], detail=detail), run.ranks[1]))
    folder = store(damaged, tmp_path / "run")

    read = load_run(folder).ranks[0]

    left = read.detail[read.detail["kind"] == Kind.STEP]["step"].tolist()
    assert left == [n for n in range(20) if n not in (3, 5, 7, 8)]
    assert read.notes == (
        f"rank00000.ddt: 8 of {len(detail)} records cannot be true (the file is damaged) and "
        "were left out",
    )
    assert report(folder).status == 0


def test_a_sound_run_loses_no_record(tmp_path: Path) -> None:
    run = small_run(steps=20)

    _, read = read_rank(store(run, tmp_path / "run") / "rank00000.ddt")

    assert len(read.detail) == len(run.ranks[0].detail)
    assert read.notes == ()


@pytest.mark.parametrize("columns", [20, 40, 60, 99])
def test_numbers_are_whole_in_a_narrow_terminal(columns: int) -> None:
    run = simulate(lambda rank, step: StepTimes(forward=123456.7), 2, 12)
    run = with_ranks(
        run, lambda trace: replace(trace, info=replace(trace.info, host="a" * 50 + ".cluster"))
    )
    analysis = analyze(run)
    shown = io.StringIO()

    render(run_report(analysis, run_checks(analysis)), Console(file=shown, width=columns))

    assert shown.getvalue().split().count("123456.7") >= 2  # once a rank, as a word
    assert "…" not in shown.getvalue()


def test_nobody_reads_on(tmp_path: Path) -> None:
    """`report | head -1` ends as the report would have, and says nothing of it."""
    slow = simulate(lambda rank, step: StepTimes(forward=45 if rank else 5), 2, 20)
    for name, run, status in (("clean", small_run(), 0), ("slow", slow, 1)):
        folder = store(run, tmp_path / name)
        for option in ("--short", "--json", "--fail-on=warning"):
            script = f"{' '.join(ddpdoctor('report', str(folder), option))} | true; "
            script += 'echo "${PIPESTATUS[0]}"'

            done = finish(["bash", "-c", script], tmp_path)

            assert (done.out.strip(), done.err) == (str(status), "")


def test_a_missing_step_of_one_rank_warns_of_nothing(tmp_path: Path) -> None:
    """Neither NaN cast to a number nor a collective without an arrival."""

    def without_a_step(trace):
        detail = trace.detail
        if trace.info.rank == 1:
            detail = detail[~((detail["kind"] == Kind.STEP) & (detail["step"] == 10))]
        return replace(trace, detail=detail)

    run = with_ranks(
        simulate(lambda rank, step: StepTimes(forward=45 if rank else 5), 3, 30), without_a_step
    )
    done = report(store(run, tmp_path / "run"))

    assert done.err == ""
    late = analyze(run).ranks[1].late
    assert late is not None
    assert late.lateness_ms == pytest.approx(0, abs=0.1)  # ranks 1 and 2 are late together


def test_a_rank_without_a_step_was_not_measured(tmp_path: Path) -> None:
    run = small_run(3, 20)
    no_steps = run.ranks[2].detail[run.ranks[2].detail["kind"] != Kind.STEP]
    run = replace(run, ranks=(*run.ranks[:2], replace(run.ranks[2], detail=no_steps)))

    analysis = analyze(run)
    done = report(store(run, tmp_path / "run"))

    assert analysis.ranks[2].times is None
    assert "rank 2: not measured" in done.out
    assert "rank 2   " not in done.out
    assert set(analysis.ranks[2].times_by_name().values()) == {None}


HUGE, LONG = 2**53, list(range(5000))
LOADER = {
    "loader": 0, "dataset": ESCAPES, "dataset_length": HUGE, "sampler": ESCAPES,
    "sampler_replicas": -(2**63), "sampler_rank": 2**63 - 1, "replacement": False, "batch_size": 0,
    "drop_last": True, "workers": HUGE, "site": None, "length": 0, "iterable": True,
    "shuffle": True, "seed": -1, "holdings": {ESCAPES: {"in_order": HUGE, "in_any": None}},
}  # fmt: skip
EPOCH = {
    "loader": 0, "epoch": HUGE, "batches": 0, "samples": 0, "ended": True, "first_sync": HUGE,
    "last_sync": 0, "sampler_epoch": None, "base_seed": -(2**63), "first_rows": None,
    "last_rows": 0, "least_rows": HUGE, "most_rows": 0, "shape": LONG, "elements": LONG,
    "order": LONG, "first_indices": [],
}  # fmt: skip
ABSURD_FACTS = [
    {"fact": "loader", "data": LOADER},
    *({"fact": "epoch", "data": EPOCH | {"epoch": epoch}} for epoch in (0, 1, 1, HUGE)),
    {"fact": "streamed", "data": {
        "loader": 0, "epoch": 0, "seen": 0, "distinct": HUGE, "limit": 1, "samples": [-1, -1, 5],
        "batches": [1] * 5000,
    }},
    *({"fact": "random", "data": {
        "loader": 0, "epoch": 0, "batch": batch, "asked": [None, 1, 1],
        "delivered": [1, 2, None], "trained": [1, 3, 4],
    }} for batch in range(3)),
    {"fact": "drawn", "data": {
        "loader": 0, "epoch": 0, "drawn": 16, "threshold": 1e-300, "indices": [2**63 - 1, -5],
        "contents": [[], [1, 2, 3]], "levels": [1e300, None],
    }},
]  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"sampler_replicas": None}, {"sampler_replicas": 2}])
def test_absurd_facts_of_loaders_crash_no_check(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = store(small_run(3), tmp_path / "run")
    for rank in range(3):
        own = {"sampler_rank": rank, "length": rank, "dataset_length": HUGE - rank % 2}
        facts = [dict(fact) for fact in ABSURD_FACTS]
        facts[0]["data"] = LOADER | own | changes
        lines = "".join(json.dumps(fact) + "\n" for fact in facts)
        (folder / f"rank{rank:05d}.facts.jsonl").write_text(lines)

    analysis = analyze(load_run(folder))

    assert [trace.notes for trace in analysis.run.ranks] == [()] * 3
    assert [r for r in run_checks(analysis) if r.outcome is Outcome.CRASH] == []
    done = report(folder)
    assert all(character == "\n" or character.isprintable() for character in done.out + done.err)


@pytest.mark.parametrize("steps", [0, 1])
def test_launch_facts_alone_are_no_verdict(steps: int, tmp_path: Path) -> None:
    run = small_run(2, 1)
    if not steps:
        run = with_ranks(run, lambda trace: replace(trace, detail=trace.detail[:0]))

    done = report(store(run, tmp_path / "run"))

    assert done.status == 2
    assert "ddpdoctor: no verdict on this run: " in done.err
    assert "recording took" not in done.out


def test_a_live_run_is_reported(tmp_path: Path) -> None:
    """Files that are still open, the last step and a collective unfinished."""

    def still_open(trace):
        detail = trace.detail[:-2].copy()
        detail["end_ns"][-3:] = np.where(detail["kind"][-3:] == Kind.STEP, detail["end_ns"][-3:], 0)
        return replace(trace, closed=False, detail=detail)

    run = with_ranks(small_run(2, 30), still_open)

    done = report(store(run, tmp_path / "run"))

    assert done.status == 0
    assert "was not closed" in done.out
    assert "left out" not in done.out.replace("left out as warm-up", "")


def test_clocks_that_cannot_be_true_are_brought_together(tmp_path: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        rank = header["rank"]["rank"]
        header["rank"].update(clock_id=str(rank), wall_minus_monotonic_ns=rank * 2**61)

    analysis = analyze(load_run(store(small_run(), tmp_path / "run", change)))

    assert not analysis.tables.clock.comparable
    ends = analysis.tables.steps["end_ns"]
    assert ends.max() - ends.min() < 10_000 * MS
