"""Model facts written with ill will: a note, or nothing that troubles a check or the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import Outcome, run_checks
from ddpdoctor.tracefile import load_run
from tests.builders import StepTimes, simulate
from tests.launching import ddpdoctor, environment, finish
from tests.stored import store

ESCAPES = "\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202e\u2028\n"
DIGESTS = {"tensors": [0, 1000], "digests": [1, 2], "sizes": [None, 0]}
SAMPLE = {"model": 0, "sync": 1, "step": 0, "forwards": 1, "optimizer_steps": 0}
RUN = {"sync": 0, "syncs": 2**53, "samples": 0, "elements": 2**53, "forwards": 0}
TENSOR = {"index": 0, "name": ESCAPES, "shape": "", "dtype": "", "reduced": True}
MODEL = {
    "model": 0, "name": ESCAPES, "group": "?", "parameter_count": 1, "buffer_count": 1,
    "elements": 0, "parameter_digest": 0, "buffer_digest": 0, "arguments": {ESCAPES: ESCAPES},
    "parameters": [TENSOR], "buffers": [],
}  # fmt: skip
TERM = {"name": ESCAPES, "factors": [0, 1e300, 1e300], "divided_by": 1e300, "is_mean": True}
SITE = {"file": ESCAPES, "line": -1, "function": ESCAPES}
SUMMED = {"group": "?", "seq": 0, "call": 1, "again": False, "values": [1.5, None], "site": SITE}
UNSYNCED = {
    "model": 0, "first_step": 0, "sync": 0, "steps": 0, "forwards": 0, "optimizer_steps": 0,
    "site": None, "gradients": DIGESTS,
}  # fmt: skip


def stored_with(folder: Path, *facts: tuple[str, Any], rank: int | None = None) -> Path:
    """A run whose ranks, or one of them, have these facts in front of their own."""
    stored = store(simulate(lambda rank, step: StepTimes(), 2, 12), folder / "run")
    lines = [json.dumps({"fact": name, "data": data}) for name, data in facts]
    for number in range(2):
        if rank in (None, number):
            path = stored / f"rank0000{number}.facts.jsonl"
            path.write_text("\n".join([*lines, path.read_text()]))
    return stored


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model_sample", SAMPLE | {"model": 64}),
        ("model_sample", SAMPLE | {"sync": -1}),
        ("model_sample", SAMPLE | {"unused": [0] * 1025}),
        ("model_sample", SAMPLE | {"parameters": DIGESTS | {"digests": [1]}}),
        ("model_sample", SAMPLE | {"parameters": DIGESTS | {"digests": [1, 2**62]}}),
        ("model_sample", SAMPLE | {"rates": [1e301]}),
        ("rescaled", {"model": 0, "sync": 1, "forwards": 1, "ratios": [float("inf")]}),
        ("loss", {"model": 0, "sync": 1, "forwards": 1, "terms": [TERM | {"factors": [1e301]}]}),
        ("summed", SUMMED | {"values": [0] * 17}),
        ("summed", SUMMED | {"seq": -1}),
        ("gathered", {"call": 1, "sync": 1, "shape": "x" * 1000, "site": None}),
        ("batches", {"model": 0, "runs": [RUN | {"syncs": -5}]}),
        ("batches", {"model": 0, "runs": [RUN] * 1025}),
        ("model", MODEL | {"name": "x" * 1000}),
        ("model", MODEL | {"arguments": {str(n): "" for n in range(65)}}),
        ("model_change", {"model": 0, "sync": 0, "kind": "eaten", "names": [], "count": 0}),
    ],
    ids=range(16),
)
def test_what_is_out_of_bounds_is_a_note(name: str, data: Any, tmp_path: Path) -> None:
    analysis = analyze(load_run(stored_with(tmp_path, (name, data), rank=0)))

    (note,) = analysis.run.ranks[0].notes
    assert note.startswith("rank00000.facts.jsonl:1: cannot be read: ")


def test_what_makes_no_sense_crashes_no_check_and_steers_no_terminal(tmp_path: Path) -> None:
    """Places beyond the named tensors, batches of nothing, models that nobody made."""
    sample = SAMPLE | {
        "sync": 2**53, "optimizer_steps": 2**53, "forwards": 0, "parameters": DIGESTS,
        "gradients": DIGESTS, "buffers": DIGESTS, "looked_at": [999], "unused": [0, 999],
        "unreduced": [0, 999], "rates": [1e300],
    }  # fmt: skip
    folder = stored_with(
        tmp_path,
        ("model", MODEL),
        ("optimizer", {"optimizer": 0, "name": "", "models": [0, 63], "settings": {}}),
        ("model_sample", sample),
        ("model_sample", sample | {"sync": 1}),
        ("evaluation", {"model": 0, "sync": 0, "buffers": DIGESTS, "wrapped": False}),
        ("non_finite", {"model": 0, "sync": 0, "step": 0, "output": None, "reduced": None}),
        ("unsynced", UNSYNCED),
        ("batches", {"model": 0, "runs": [RUN, RUN | {"sync": 2**53}]}),
        ("rescaled", {"model": 0, "sync": 0, "forwards": 0, "ratios": []}),
        *(
            ("loss", {"model": 0, "sync": n, "forwards": 0, "terms": [TERM], "site": SITE})
            for n in range(6)
        ),
        *(
            (
                "summed",
                SUMMED
                | {
                    "group": "0",
                    "seq": n,
                    "call": 2**n,
                    "model": 0,
                    "sync": n,
                    "values": value,
                    "ratios": [0, 1e300],
                },
            )
            for n, value in enumerate([[], [1.5], [0.5], [1e300], [0.25], [None]])
        ),
        *(("gathered", {"call": 1, "sync": 1, "shape": ESCAPES, "site": SITE}) for _ in range(4)),
        ("model_change", {"model": 0, "sync": 0, "kind": "cast", "names": [], "count": 0}),
        ("model_failure", {"kind": "unused", "model": 7, "sync": 0, "names": []}),
        ("model_failure", {"kind": "in-place", "model": None, "sync": 0, "names": [ESCAPES]}),
    )
    other = DIGESTS | {"digests": [7, 8], "sizes": [1e300, -1e300]}
    path = folder / "rank00001.facts.jsonl"
    changed = sample | {"sync": 1, "parameters": other, "forwards": 2**53, "unused": []}
    line = json.dumps({"fact": "model_sample", "data": changed})
    path.write_text(f"{path.read_text()}{line}\n")

    analysis = analyze(load_run(folder))
    done = finish(ddpdoctor("report", str(folder)), folder, environment(NO_COLOR="1"), seconds=60)

    assert not any(trace.notes for trace in analysis.run.ranks)
    assert not [r for r in run_checks(analysis) if r.outcome is Outcome.CRASH]
    assert r"\x1b[31mred" in done.out
    assert all(character == "\n" or character.isprintable() for character in done.out + done.err)
