"""One name for a run on all its ranks, and one run for all its restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from ddpdoctor.recorder.naming import agree_on_attempt, claimed_attempt, new_run_id


def life_of_a_job(folder: Path, runs: Path, number: int) -> tuple[str, int]:
    """A process group of its own, as after a restart, and what its rank is told."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{number}", rank=0, world_size=1
    )
    try:
        run_id, attempt = agree_on_attempt(runs)
        assert agree_on_attempt(runs) == (run_id, attempt)  # as another rank hears it
        (runs / run_id / f"attempt-{attempt}").mkdir(parents=True)
        return run_id, attempt
    finally:
        dist.destroy_process_group()


def test_restarts_by_one_launcher_are_attempts_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    lives = [life_of_a_job(tmp_path, tmp_path / "runs", number) for number in range(3)]

    assert len({run_id for run_id, _ in lives}) == 1
    assert [attempt for _, attempt in lives] == [0, 1, 2]


def test_a_restart_that_finds_the_keys_of_the_life_before_is_a_new_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with torchrun, whose agent keeps one store for all lives of its ranks."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        attempts = []
        for life in range(2):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(life))
            run_id, attempt = agree_on_attempt(tmp_path / "runs")
            (tmp_path / "runs" / run_id / f"attempt-{attempt}").mkdir(parents=True)
            attempts.append(attempt)
    finally:
        dist.destroy_process_group()

    assert attempts == [0, 1]


def test_the_environment_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPDOCTOR_RUN_ID", "my-run.7")

    assert life_of_a_job(tmp_path, tmp_path / "runs", 0) == ("my-run.7", 0)


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", ".hidden", "", "x" * 200])
def test_a_name_that_is_a_path_is_not_taken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_RUN_ID", name)

    run_id, _ = life_of_a_job(tmp_path, tmp_path / "runs", 0)

    assert run_id != name
    assert "/" not in run_id


def test_new_names_differ() -> None:
    assert len({new_run_id() for _ in range(20)}) > 15


def test_a_group_of_one_takes_no_attempt_that_another_has(tmp_path: Path) -> None:
    """As where each process of a launcher trains alone by mistake, in the same run."""
    taken = [claimed_attempt(tmp_path / "run", 0) for _ in range(3)]

    assert taken == [0, 1, 2]
