"""Reading /proc, and finding the ranks of jobs in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.hang.jobs import JobMembers, find_jobs
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.snapshot import DeadRank
from tests.hang.fake_proc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path)
    fake.add(1, 0, torch=False, command=("init",))
    fake.add(10, 1, torch=False, command=("python", "-m", "torchrun"))
    return fake


def jobs(proc: FakeProc) -> list[JobMembers]:
    return find_jobs(Processes(proc.root))


def ranks(job: JobMembers) -> list[tuple[int | None, int]]:
    return [(member.rank, member.pid) for member in job.members]


def test_one_line_of_stat_with_brackets_in_the_name(proc: FakeProc) -> None:
    stat = Processes(proc.root).stat(10)

    assert stat is not None
    assert (stat.name, stat.state, stat.parent) == ("py (odd) name", "S", 1)
    assert (stat.cpu_ticks, stat.start_ticks) == (200, 1010)


def test_only_the_allowed_part_of_an_environment_is_kept(proc: FakeProc) -> None:
    proc.rank(11, 0)

    identity = Processes(proc.root).identity(11)

    assert identity is not None
    assert identity["RANK"] == "0"
    assert "SECRET_TOKEN" not in identity


def test_counters(proc: FakeProc) -> None:
    counters = Processes(proc.root).counters(10)

    assert counters is not None
    assert counters.cpu_s == pytest.approx(2.0, rel=0.5)  # 200 ticks, most often of 10 ms
    assert (counters.io_bytes, counters.main_thread_switches) == (123, 41)


def test_what_is_gone_or_torn_is_none(proc: FakeProc) -> None:
    (proc.root / "77").mkdir()
    (proc.root / "78").mkdir()
    (proc.root / "78" / "stat").write_text("78 (py) S 1")

    processes = Processes(proc.root)

    assert [processes.stat(pid) for pid in (77, 78, 79)] == [None, None, None]
    assert processes.counters(79) is None
    assert processes.identity(79) is None
    assert not processes.has_torch(79)


def test_no_proc_at_all_is_no_job(tmp_path: Path) -> None:
    assert find_jobs(Processes(tmp_path / "nowhere")) == []


def test_ranks_of_torchrun(proc: FakeProc) -> None:
    proc.rank(12, 1)
    proc.rank(11, 0)

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 11), (1, 12)]
    assert job.dead == ()
    assert (job.job.master, job.job.run_id) == ("10.0.0.1:29500", "job-a")
    assert (job.job.agent_pid, job.job.world_size) == (10, 2)


def test_children_of_a_rank_inherit_its_variables_and_are_no_ranks(proc: FakeProc) -> None:
    proc.rank(11, 0, world=1)
    proc.rank(21, 0, world=1, parent=11)
    proc.rank(22, 0, world=1, parent=21, torch=False)

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 11)]


def test_a_shell_script_between_torchrun_and_python(proc: FakeProc) -> None:
    proc.rank(11, 0, world=1, torch=False, command=("bash", "train.sh"))
    proc.rank(12, 0, world=1, parent=11)

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 12)]


def test_a_rank_that_has_not_loaded_torch_yet(proc: FakeProc) -> None:
    proc.rank(11, 0, torch=False)
    proc.rank(12, 1)

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 11), (1, 12)]


def test_two_jobs_are_told_apart(proc: FakeProc) -> None:
    proc.add(30, 1, torch=False)
    proc.rank(11, 0)
    proc.rank(12, 1)
    proc.rank(31, 0, parent=30, port=29501, run_id="job-b")
    proc.rank(32, 1, parent=30, port=29501, run_id="job-b")

    assert sorted(ranks(job)[0] for job in jobs(proc)) == [(0, 11), (0, 31)]


def test_two_jobs_of_containers_that_share_one_address(proc: FakeProc) -> None:
    proc.add(30, 1, torch=False)
    for parent, pids in ((10, (11, 12)), (30, (31, 32))):
        for rank, pid in enumerate(pids):
            proc.rank(pid, rank, parent=parent, run_id="none")

    assert sorted(job.job.agent_pid for job in jobs(proc)) == [10, 30]


def test_two_launchers_of_one_job_on_this_host(proc: FakeProc) -> None:
    proc.add(30, 1, torch=False)
    for rank in range(4):
        proc.rank(11 + rank, rank, world=4, local_world=2, parent=10 if rank < 2 else 30)

    (job,) = jobs(proc)

    assert [rank for rank, _ in ranks(job)] == [0, 1, 2, 3]
    assert job.dead == ()


def test_a_zombie_is_the_rank_that_is_missing_with_its_signal(proc: FakeProc) -> None:
    proc.rank(11, 0, world=3)
    proc.add(12, 10, state="Z", exit_code=9)
    proc.rank(13, 2, world=3)

    (job,) = jobs(proc)

    assert job.dead == (DeadRank(1, 12, signal=9, exit_status=0),)


def test_a_rank_that_its_launcher_has_already_reaped(proc: FakeProc) -> None:
    proc.rank(11, 0, world=3)
    proc.rank(12, 1, world=3)

    (job,) = jobs(proc)

    assert job.dead == (DeadRank(2),)


def test_a_failed_rank_keeps_its_exit_status(proc: FakeProc) -> None:
    proc.rank(11, 0)
    proc.add(12, 10, state="Z", exit_code=3 << 8)

    (job,) = jobs(proc)

    assert job.dead == (DeadRank(1, 12, exit_status=3),)
    assert job.dead[0].failed


SPAWN = ("python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")


def test_spawned_processes_of_one_parent_are_candidates(proc: FakeProc) -> None:
    proc.add(40, 1)
    proc.add(41, 40, command=SPAWN)
    proc.add(42, 40, command=SPAWN)
    proc.add(43, 40, torch=False, command=("python", "-c", "resource_tracker"))

    (job,) = jobs(proc)

    assert [member.pid for member in job.members] == [41, 42]
    assert all(member.candidate and member.rank is None for member in job.members)


def test_spawned_loader_workers_of_a_rank_are_no_candidates(proc: FakeProc) -> None:
    proc.rank(11, 0, world=1)
    proc.add(41, 11, command=SPAWN)

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 11)]


def test_a_dead_spawned_process_is_counted_but_not_other_children(proc: FakeProc) -> None:
    proc.add(40, 1)
    proc.add(41, 40, command=SPAWN)
    proc.add(42, 40, state="Z", exit_code=9, start=1045)
    proc.add(43, 40, state="Z", start=90_000)

    (job,) = jobs(proc)

    assert job.dead == (DeadRank(None, 42, signal=9, exit_status=0),)


def test_a_registration_gives_a_spawned_process_its_rank(proc: FakeProc) -> None:
    proc.add(40, 1)
    proc.add(41, 40, command=SPAWN)
    proc.register(41, 3, start=1041, world=4)

    (job,) = jobs(proc)

    (member,) = job.members
    assert (member.rank, member.candidate) == (3, False)
    assert job.job.world_size == 4


def test_a_registration_of_an_earlier_process_with_this_pid_is_not_believed(
    proc: FakeProc,
) -> None:
    proc.add(40, 1)
    proc.add(41, 40, command=SPAWN)
    proc.register(41, 3, start=7)

    (job,) = jobs(proc)

    assert job.members[0].rank is None


def test_a_process_that_only_its_registration_knows(proc: FakeProc) -> None:
    proc.add(50, 1)
    proc.register(50, 0, start=1050, world=1, run="/runs/20260101-abcd/attempt-1")

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 50)]
    assert job.job.run_id == "20260101-abcd"


def test_a_registered_rank_that_is_gone_is_dead(proc: FakeProc) -> None:
    proc.add(50, 1)
    proc.register(50, 0, start=1050)
    proc.register(51, 1, start=1051)
    proc.register(52, 0, start=1052, run="/runs/of/yesterday")

    (job,) = jobs(proc)

    assert job.dead == (DeadRank(1, 51),)


def test_a_folder_open_to_others_is_not_believed(proc: FakeProc) -> None:
    proc.add(50, 1)
    proc.register(50, 0, start=1050)
    next(proc.temporary.iterdir()).chmod(0o755)

    assert jobs(proc) == []


def test_a_registration_that_is_no_json_is_passed_over(proc: FakeProc) -> None:
    proc.add(50, 1)
    proc.register(50, 0, start=1050, world=1)
    proc.register(51, 0, start=1051)
    (next(proc.temporary.iterdir()) / "51.json").write_text('{"pid": []}')

    (job,) = jobs(proc)

    assert ranks(job) == [(0, 50)]
