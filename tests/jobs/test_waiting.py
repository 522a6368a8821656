"""Real ranks that wait, each range of steps for another reason: what each is said to be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.waiting import waiting_in
from ddpdoctor.analysis.waitmodel import Waiting, WaitKind
from tests.launching import PROGRAMS, ROOT, environment, finish, torchrun
from tests.programs.waits_in_ranges import RANGES, STALL_S, first_step

pytestmark = pytest.mark.job

SETTLE = 3  # steps at the beginning of a range that still wait for what was before them
LEAST_SHARE = 0.05  # of a step: less is noise of a busy machine, and no warning


@dataclass(frozen=True)
class Trained:
    analysis: Analysis
    has_quota: bool

    def dearest(self, name: str) -> Waiting | None:
        """Of a range, as if no other had been recorded."""
        first, steps = first_step(name) + SETTLE + 1, RANGES[name] - SETTLE
        window = StepRange(0, steps, first, first + steps - 1)
        analysis = self.analysis
        found = waiting_in(analysis.run, analysis.tables, window, 20.0)
        return found[0] if found else None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("waiting")
    with control_group() as group:
        arguments = [str(group)] if group is not None else []
        program = torchrun(PROGRAMS / "waits_in_ranges.py", *arguments, ranks=4)
        done = finish(program, folder, environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    return Trained(analyze(load_run(run)), group is not None)


@contextmanager
def control_group() -> Iterator[Path | None]:
    """One whose quota can be set; None where none can be made."""
    base = Path("/sys/fs/cgroup/cpu")
    group = (base if base.is_dir() else base.parent) / f"ddpdoctor-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        limits = ("cpu.cfs_quota_us", "cpu.max")
        yield group if any((group / name).exists() for name in limits) else None
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    [
        ("lengths", WaitKind.UNEVEN, ()),
        ("host", WaitKind.HOST, (2, 3)),
        ("garbage", WaitKind.PAUSES, (1,)),
        ("saves", WaitKind.RANK_0, (0,)),
        ("stalls", WaitKind.PERIODIC, (2,)),
        ("growth", WaitKind.DRIFT, ()),
    ],
)
def test_the_cause_and_the_culprits_are_the_ones_put_in(
    trained: Trained, name: str, kind: WaitKind, ranks: tuple[int, ...]
) -> None:
    found = trained.dearest(name)
    assert found is not None
    assert (found.kind, found.ranks) == (kind, ranks)


def test_a_quota_is_told_from_slow_work(trained: Trained) -> None:
    if not trained.has_quota:
        pytest.skip("no control group with a quota can be made here")
    found = trained.dearest("quota")
    assert found is not None
    assert (found.kind, found.ranks) == (WaitKind.QUOTA, (1,))


@pytest.mark.parametrize("name", ["saves", "stalls"])
def test_an_interval_is_told_in_steps_and_by_its_length(trained: Trained, name: str) -> None:
    found = trained.dearest(name)
    assert found is not None
    assert found.period is not None
    assert found.period.every_steps == 8
    assert found.period.stall_ms == pytest.approx(1000 * STALL_S, rel=0.25)


def test_where_nothing_was_put_in_no_rank_is_blamed(trained: Trained) -> None:
    found = trained.dearest("nothing")
    held = (WaitKind.QUEUE, WaitKind.IN_TURN, WaitKind.NOW_AND_THEN)  # of a busy machine
    assert found is None or found.kind in held or found.share < LEAST_SHARE
