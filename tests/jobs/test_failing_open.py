"""A bug of ours in the training process costs one warning and the recording, never the training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddpdoctor import load_run
from tests.launching import PROGRAMS, environment, finish_unrecorded, torchrun

pytestmark = [pytest.mark.job, pytest.mark.long, pytest.mark.timeout(300)]

PROGRAM = PROGRAMS / "recorder_fails.py"
PARTS = ("writer", "backward", "completion", "sentinel")  # one a rank


def test_a_hook_that_raises_ends_the_recording_alone(tmp_path: Path) -> None:
    """Ranks whose recording is off end as unrecorded ones do, now and then with torch's abort."""
    plain = environment(DDPDOCTOR_DISABLE="1")
    done = finish_unrecorded(torchrun(PROGRAM, "plain", ranks=len(PARTS)), tmp_path, plain)
    assert done.status == 0, done.err

    done = finish_unrecorded(
        torchrun(PROGRAM, "broken", *PARTS, ranks=len(PARTS)),
        tmp_path,
        environment(DDPDOCTOR_REPORT="0"),
    )

    assert done.status == 0, done.err
    newest = max((tmp_path / "ddpdoctor_runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    traces = load_run(newest).ranks
    for rank, part in enumerate(PARTS):
        expected, learned = (torch.load(tmp_path / f"{x}.{rank}") for x in ("plain", "broken"))
        assert all(torch.equal(learned[name], expected[name]) for name in expected)
        assert done.err.count(f"recording is off for this process; training goes on "
                              f"(LookupError: {part} is broken)") == 1  # fmt: skip
        assert traces[rank].stopped == f"LookupError: {part} is broken"
        assert traces[rank].end is None
