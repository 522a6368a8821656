"""Real ranks on gloo: what is recorded is the truth, and training is as without us."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from ddpdoctor import load_run
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.events import Flag, Kind, Phase
from ddpdoctor.recorder.buckets import STEPS_ALL_TIMED, TIMED_EVERY
from ddpdoctor.tracefile import RankTrace
from tests.launching import (
    PROGRAMS,
    ROOT,
    TRAIN,
    Finished,
    ddpdoctor,
    ddpdoctor_run,
    environment,
    finish,
    finish_unrecorded,
    started,
    torchrun,
)

pytestmark = pytest.mark.job

LATE_MS = 40.0


def report_of(folder: Path, *arguments: str) -> tuple[int, dict]:
    """Exit status and report object on the newest run in a folder."""
    done = finish(ddpdoctor("report", "--json", *arguments), folder)
    assert done.status in (0, 1), done.err
    return done.status, json.loads(done.out)


def findings(report: dict, code: str) -> list[dict]:
    return next(result for result in report["results"] if result["code"] == code)["findings"]


def line_of(text: str, program: Path = TRAIN) -> int:
    lines = program.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    "origin",
    [
        "input",
        "backward",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("forward", "optimizer", "between")
        ),
    ],
)
def test_a_late_rank_is_named_with_its_origin_and_line(origin: str, tmp_path: Path) -> None:
    trained = finish(torchrun(TRAIN, "--wrap", "--fault", origin), tmp_path)
    assert trained.status == 0, trained.err

    status, report = report_of(tmp_path)

    assert status == 1
    assert report["primary"] == "DD101"
    (finding,) = findings(report, "DD101")
    assert finding["culprits"] == [1]
    assert finding["confidence"] == "certain"
    assert f"more {origin} time" in [e["what"] for e in finding["evidence"]][3]
    caused = next(e for e in finding["evidence"] if e["what"] == "delay it caused per step")
    assert caused["value"] == pytest.approx(LATE_MS, abs=LATE_MS / 4)
    # The sleeping line itself; `late` is called from everywhere but the loader.
    sleep = "time.sleep(self.options.load_ms" if origin == "input" else "time.sleep(options.late_ms"
    assert finding["where"][0]["line"] == line_of(sleep)
    assert_identity(report)
    assert "DD101 late-rank" in trained.err  # rank 0's short report at the end


def assert_identity(report: dict) -> None:
    """input + forward + backward + wait + transfer + optimizer + between = step (design §4)."""
    for rank in report["time"]["ranks"]:
        terms = ("input", "forward", "backward", "wait", "transfer", "optimizer", "between")
        assert sum(rank[f"{term}_ms"] for term in terms) == pytest.approx(rank["step_ms"], abs=0.01)
        assert rank["between_ms"] >= 0


@pytest.mark.long
def test_with_batch_norm_the_victims_wait_in_forward_and_the_origin_is_still_the_input(
    tmp_path: Path,
) -> None:
    command = torchrun(TRAIN, "--wrap", "--fault", "input", "--batch-norm", "--steps", "40")
    assert finish(command, tmp_path).status == 0

    _, report = report_of(tmp_path)

    (finding,) = findings(report, "DD101")
    assert finding["culprits"] == [1]
    assert "comes from its input" in finding["message"]
    victim, culprit = report["time"]["ranks"]
    assert victim["wait_ms"] > LATE_MS / 2 > victim["forward_ms"]
    assert culprit["input_ms"] > LATE_MS / 2


@pytest.mark.long
def test_weights_and_exit_status_are_those_of_plain_training(tmp_path: Path) -> None:
    """Wrapped, and unchanged under `ddpdoctor run`: equal bit by bit."""
    plain = finish_unrecorded(torchrun(TRAIN, "--save", "plain"), tmp_path)
    wrapped = finish(torchrun(TRAIN, "--save", "wrapped", "--wrap"), tmp_path)
    watched = finish(ddpdoctor_run(TRAIN, "--save", "watched"), tmp_path)

    assert (plain.status, wrapped.status, watched.status) == (0, 0, 0), watched.err
    assert "this launch has a fault" not in wrapped.err + watched.err
    for rank in range(2):
        expected = torch.load(tmp_path / f"plain.{rank}")
        for name in ("wrapped", "watched"):
            weights = torch.load(tmp_path / f"{name}.{rank}")
            assert weights.keys() == expected.keys()
            assert all(torch.equal(weights[key], expected[key]) for key in expected)
    assert len(list((tmp_path / "ddpdoctor_runs").iterdir())) == 2


@pytest.mark.long
def test_a_failing_script_fails_as_without_us(tmp_path: Path) -> None:
    program = PROGRAMS / "raises_on_rank_1.py"
    plain = finish_unrecorded(torchrun(program), tmp_path)
    watched = finish(ddpdoctor_run(program), tmp_path)

    assert plain.status == watched.status == 1
    assert "ZeroDivisionError" in watched.err
    _, report = report_of(tmp_path, "--fail-on", "never")
    assert report["time"]["steps"]["counted"] > 0
    assert report["primary"] == "DD901"
    (finding,) = findings(report, "DD901")
    assert (finding["culprits"], finding["victims"]) == ([1], [0])
    place = f"raises_on_rank_1.py:{line_of('1 / 0', program)}"
    assert f"rank 1 ended with ZeroDivisionError at {place} in step 21" in finding["message"]


@pytest.mark.long
def test_spawned_ranks_are_recorded(tmp_path: Path) -> None:
    done = finish([sys.executable, str(PROGRAMS / "spawned.py")], tmp_path)

    assert done.status == 0, done.err
    status, report = report_of(tmp_path)
    assert status == 0
    assert [rank["rank"] for rank in report["time"]["ranks"]] == [0, 1]


@pytest.mark.long
def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    env = environment(DDPDOCTOR_DISABLE="1")
    done = finish_unrecorded(torchrun(TRAIN, "--wrap"), tmp_path, env)

    assert done.status == 0
    assert not (tmp_path / "ddpdoctor_runs").exists()


def test_ranks_that_were_killed_leave_a_readable_record(tmp_path: Path) -> None:
    command = torchrun(TRAIN, "--wrap", "--steps", "100000")
    with started(command, tmp_path) as job:
        pids = wait_for_ranks(tmp_path, job)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=60)

    _, report = report_of(tmp_path, "--fail-on", "never")

    assert report["time"]["steps"]["counted"] >= 20
    assert "the record of ranks 0 and 1 was not closed" in report["notes"][0]


def wait_for_ranks(folder: Path, job, steps: int = 30) -> list[int]:
    """Pids of both ranks once each has recorded some steps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert job.poll() is None, "the job ended early"
        time.sleep(0.2)
        runs = list((folder / "ddpdoctor_runs").glob("*"))
        try:
            ranks = load_run(runs[0]).ranks if runs else ()
        except DdpDoctorError:
            continue
        if len(ranks) == 2 and all(len(rank.steps) >= steps for rank in ranks):
            return [rank.info.pid for rank in ranks]
    raise AssertionError("the ranks recorded no steps in time")


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_costs_one_warning_and_the_training_ends_well(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = finish(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], tmp_path)
    assert mount.status == 0, mount.err
    try:
        done = finish(
            torchrun(TRAIN, "--wrap", "--steps", "1200", "--width", "16", "--batch-size", "2"),
            tmp_path,
            environment(DDPDOCTOR_DIR=str(disk)),
        )
        (run,) = disk.iterdir()
        ranks = load_run(run).ranks
    finally:
        finish(["umount", str(disk)], tmp_path)

    assert done.status == 0, done.err
    assert all(len(rank.steps) for rank in ranks)
    assert any("recording ended before the training" in note for r in ranks for note in r.notes)
    assert_one_warning_a_rank(done, "No space left on device")


@pytest.mark.long
def test_an_unwritable_folder_costs_one_warning_and_the_training_ends_well(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = environment(DDPDOCTOR_DIR=str(tmp_path / "file" / "runs"))

    done = finish_unrecorded(torchrun(TRAIN, "--wrap", "--steps", "20"), tmp_path, env)

    assert done.status == 0, done.err
    assert_one_warning_a_rank(done, "Not a directory")


def assert_one_warning_a_rank(done: Finished, reason: str) -> None:
    warnings = [line for line in done.err.splitlines() if "recording is off" in line]
    assert 1 <= len(warnings) <= 2
    assert all(reason in line for line in warnings)


@pytest.mark.long
def test_repeated_samples_without_a_distributed_sampler(tmp_path: Path) -> None:
    command = torchrun(TRAIN, "--wrap", "--no-sampler", "--steps", "60")
    assert finish(command, tmp_path).status == 0

    status, report = report_of(tmp_path)

    assert status == 1
    (finding,) = findings(report, "DD302")
    assert finding["culprits"] == [0, 1]
    assert finding["confidence"] == "certain"


@pytest.mark.long
def test_slow_loading_on_every_rank_is_input_bound_and_names_the_dataset(tmp_path: Path) -> None:
    command = torchrun(TRAIN, "--wrap", "--load-ms", "30", "--batch-size", "1")
    assert finish(command, tmp_path).status == 0

    status, report = report_of(tmp_path)

    assert status == 1
    assert report["primary"] == "DD301"
    (finding,) = findings(report, "DD301")
    assert finding["where"][0]["function"] == "Numbers.__getitem__"


def test_healthy_training_has_no_finding(tmp_path: Path) -> None:
    """With workers: their processes inherit the hooks and must not record."""
    steps = STEPS_ALL_TIMED + 3 * TIMED_EVERY
    command = torchrun(TRAIN, "--wrap", "--workers", "1", "--batch-norm", "--steps", str(steps))
    done = finish(command, tmp_path)
    assert done.status == 0, done.err

    status, report = report_of(tmp_path)

    assert status == 0, report["results"]
    assert report["primary"] is None
    assert report["time"]["ranks"][0]["overlapped_ms"] is not None
    run = load_run(next((tmp_path / "ddpdoctor_runs").iterdir()))
    assert [timed_steps(rank) for rank in run.ranks] == 2 * [[64, 68, 72]]


def timed_steps(rank: RankTrace) -> list[int]:
    """The later steps in which completions of buckets were stamped; in all they have an end."""
    buckets = rank.detail[(rank.detail["bucket"] >= 0) & (rank.detail["sync"] >= STEPS_ALL_TIMED)]
    assert (buckets["end_ns"] > buckets["begin_ns"]).all()
    timed = (buckets["flags"] & Flag.UNTIMED) == 0
    return sorted(set(buckets["sync"][timed].tolist()))


@pytest.mark.long
def test_one_rank_with_another_variable_is_named(tmp_path: Path) -> None:
    program = PROGRAMS / "other_variable.py"
    assert finish(torchrun(program, ranks=3), tmp_path).status == 0

    _, report = report_of(tmp_path)

    (finding,) = findings(report, "DD404")
    assert finding["culprits"] == [2]
    assert "GLOO_SOME_SETTING" in finding["message"]


@pytest.mark.long
def test_a_rank_file_that_is_truncated_meanwhile_kills_nobody(tmp_path: Path) -> None:
    command = torchrun(TRAIN, "--wrap", "--steps", "400", "--fault", "between", "--late-ms", "5")
    with started(command, tmp_path) as job:
        wait_for_ranks(tmp_path, job)
        for path in tmp_path.glob("ddpdoctor_runs/*/*/rank00001.ddt"):
            os.truncate(path, 0)
        _, err = job.communicate(timeout=90)

    assert job.returncode == 0, err
    assert err.count("recording is off") == 1, err
    assert "rank00001.ddt was truncated while it was written" in err


@pytest.mark.long
def test_a_collective_that_raises_is_left_out(tmp_path: Path) -> None:
    """Rank 1's bad call raises and is caught; what follows is matched as before."""
    done = finish(torchrun(PROGRAMS / "failing_collective.py"), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert report["time"]["steps"]["counted"] >= 20
    for rank in report["time"]["ranks"]:
        assert rank["wait_ms"] < 0.5 * rank["step_ms"]
    assert report["primary"] is None


@pytest.mark.long
def test_an_optimizer_step_that_raises_does_not_end_the_record(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAMS / "failing_optimizer.py"), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert report["time"]["steps"]["counted"] >= 20


def test_run_records_where_the_ranks_cannot_import_ddpdoctor_by_themselves(tmp_path: Path) -> None:
    """As from a checkout that is not installed."""
    env = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    command = ddpdoctor_run(TRAIN, "--steps", "10")

    done = finish(command, ROOT, env | {"DDPDOCTOR_DIR": str(tmp_path)})

    assert done.status == 0, done.err
    assert list(tmp_path.glob("*/attempt-0/rank0000*.ddt"))


def test_a_signal_to_run_ends_the_job(tmp_path: Path) -> None:
    command = ddpdoctor_run(TRAIN, "--steps", "100000")
    with started(command, tmp_path) as job:
        wait_for_ranks(tmp_path, job)
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)

    assert job.returncode != 0


@pytest.mark.skipif(os.getuid() != 0, reason="a time namespace needs root")
def test_ranks_whose_clocks_differ_are_brought_together(tmp_path: Path) -> None:
    train = [sys.executable, str(TRAIN), "--wrap", "--fault", "forward"]
    command = torchrun(PROGRAMS / "other_clock.sh", *train)
    command.insert(command.index("--standalone"), "--no-python")
    done = finish(command, tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    (finding,) = findings(report, "DD101")
    assert finding["culprits"] == [1]
    victim, _ = report["time"]["ranks"]
    assert victim["wait_ms"] == pytest.approx(LATE_MS, abs=LATE_MS / 4)
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    clock, *_ = load_run(run).ranks[1].clocks
    assert abs(clock.offset_ns + 5000 * 10**9) <= clock.error_ns


@pytest.mark.long
def test_children_that_a_rank_forks_write_nothing_and_end_well(tmp_path: Path) -> None:
    """Neither one that it forks itself nor the workers of its loader."""
    done = finish(torchrun(PROGRAMS / "forks.py", ranks=1), tmp_path)
    assert done.status == 0, done.err

    trained_until = int(re.search(r"trained until (\d+)", done.out)[1])
    assert "child ended with 0" in done.out
    assert "Traceback" not in done.err
    assert done.err.count("ddpdoctor · run") == 1
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    (trace,) = load_run(run).ranks
    assert trace.closed
    spans = trace.detail[trace.detail["kind"] == Kind.SPAN]
    assert (spans["code"] == Phase.FORWARD).sum() == 40
    assert (trace.detail["begin_ns"] <= trained_until).all()


@pytest.mark.long
def test_a_restart_is_a_new_attempt_of_the_same_run(tmp_path: Path) -> None:
    """With a store for each: in the one that torchrun shares, gloo trips over old keys."""
    command = ddpdoctor_run(PROGRAMS / "raises_on_rank_1.py")
    command.insert(command.index("--standalone"), "--max-restarts=1")
    done = finish(command, tmp_path, environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    assert done.status == 1

    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    attempts = sorted(run.iterdir())
    assert [path.name for path in attempts] == ["attempt-0", "attempt-1"]
    for number, path in enumerate(attempts):
        read = load_run(path)
        assert (read.info.run_id, read.info.attempt) == (run.name, number)
        assert all(len(rank.steps) for rank in read.ranks)
    assert load_run(run).path == attempts[1]
