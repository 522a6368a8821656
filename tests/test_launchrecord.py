"""Notes of how ranks joined: what is read of them, and what the launch checks make of it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.errors import NotARun
from ddpdoctor.findings import Confidence, Finding
from ddpdoctor.launchfacts import LaunchFacts, Outcome, PortHolder, Reach, Unsynced
from ddpdoctor.launchrecord import FOLDER, forget_notes, has_notes, read_launch
from ddpdoctor.launchreport import launch_verdict
from ddpdoctor.processfacts import encoded
from ddpdoctor.runfolders import attempts, launch_alone, list_runs, newest_run
from tests.launch_builders import TIMED_OUT, WAITS, called, codes, noted, only_finding

NOBODY = 2**22 + 1  # beyond the numbers of processes


def one(folder: Path, *processes) -> LaunchFacts:
    (facts,) = noted(folder, *processes)
    return facts


def finding_of(folder: Path, *processes) -> tuple[str, Finding]:
    return only_finding(one(folder, *processes))


def test_ranks_that_joined_are_clean(tmp_path: Path) -> None:
    facts = one(tmp_path, called(1), called(0))

    assert [process.rank for process in facts.processes] == [0, 1]
    assert facts.rendezvous is not None
    assert (facts.rendezvous.address, facts.rendezvous.port) == ("node0", 29500)
    assert codes(facts) == []


def test_two_that_call_themselves_rank_0(tmp_path: Path) -> None:
    """As where each takes SLURM_PROCID, and it is not set."""
    second = called(0, pid=1001, told={"RANK": "1"}, call=TIMED_OUT)

    code, finding = finding_of(tmp_path, called(0, call=TIMED_OUT), second)

    assert code == "DD401"
    assert finding.message == (
        "2 processes claim rank 0: pid 1000 on node0, pid 1001 on node0, and nobody is rank 1"
    )
    assert [each.value for each in finding.evidence] == ["RANK=0", "RANK=1"]


def test_a_rank_that_calls_again_after_it_was_alone_is_no_second_one(tmp_path: Path) -> None:
    """A script that spawns its ranks twice: the first ones have gone."""
    first = [called(rank) for rank in (0, 1)]
    again = [called(rank, pid=2000 + rank, call={"began_s": 200.0}) for rank in (0, 1)]

    facts = one(tmp_path, *first, *again)

    assert [process.pid for process in facts.processes] == [2000, 2001]
    assert codes(facts) == []


def test_groups_that_meet_at_places_of_their_own_are_judged_apart(tmp_path: Path) -> None:
    """Two trainings that one script starts; that of the second place fails."""
    first = [called(rank, call={"place": "/tmp/a"}) for rank in (0, 1)]
    second = [called(0, pid=7, call=TIMED_OUT | {"place": "/tmp/b", "message": "timed out"})]

    healthy, failing = noted(tmp_path, *first, *second)

    assert codes(healthy) == []
    assert codes(failing) == ["DD407"]


def test_ranks_of_the_scripts_own_store_are_not_held_against_each_other(tmp_path: Path) -> None:
    twice = [called(0, pid=pid, call={"place": ""}) for pid in (5, 6)]

    assert codes(one(tmp_path, *twice)) == []


def test_more_ranks_asked_for_than_were_started(tmp_path: Path) -> None:
    ranks = [called(rank, world_size=3, call=TIMED_OUT) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert (code, finding.confidence) == ("DD403", Confidence.CERTAIN)
    assert finding.message == (
        "init_process_group waits for 3 ranks, and the launcher started 2 (WORLD_SIZE=2): nobody "
        "is rank 2"
    )
    assert (finding.culprits, finding.victims) == ((), (0, 1))


def test_a_process_that_spawns_more_ranks_than_were_started_is_clean(tmp_path: Path) -> None:
    """As torch.multiprocessing does within one process of the launcher; one of them fails later."""
    told = {"RANK": "0", "WORLD_SIZE": "1"}
    ranks = [called(rank, world_size=3, told=told, pid=50 + rank) for rank in range(3)]

    assert codes(one(tmp_path, *ranks)) == []


def test_each_alone(tmp_path: Path) -> None:
    ranks = [called(0, world_size=1, pid=50 + rank, told={"RANK": str(rank)}) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert code == "DD403"
    assert "each rank trains alone" in finding.message
    assert finding.culprits == ()


def test_a_port_that_another_job_holds(tmp_path: Path) -> None:
    place = {"place": "127.0.0.1:29517", "tcp": True}
    held = PortHolder(29517, 4242, "python other.py")
    ranks = [called(0, call=WAITS | place | {"holder": held}), called(1, call=WAITS | place)]

    code, finding = finding_of(tmp_path, *ranks)

    assert code == "DD408"
    assert "port 29517 of node0 is held by pid 4242 (python other.py)" in finding.message
    assert "env://" in finding.fix  # under torchrun another port would not help either


def test_an_error_that_says_the_port_is_in_use(tmp_path: Path) -> None:
    message = "The server socket has failed to listen on any local network address. EADDRINUSE"
    failed = TIMED_OUT | {"error": "DistNetworkError", "message": message}

    code, _ = finding_of(tmp_path, called(0, call=failed), called(1, call=WAITS))

    assert code == "DD408"


def test_an_address_of_the_scripts_own_beside_torchruns_agent(tmp_path: Path) -> None:
    failed = TIMED_OUT | {"place": "127.0.0.1:29517", "tcp": True}
    ranks = [called(rank, call=failed) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert code == "DD408"
    assert "rank 0 listens nowhere" in finding.message
    assert "Leave init_method out" in finding.fix


def test_a_name_that_nobody_knows(tmp_path: Path) -> None:
    failed = TIMED_OUT | {"message": "The IPv4 network addresses of (nodeX, 29500) cannot be "
                          "retrieved (gai error: -2 - Name or service not known)."}  # fmt: skip

    facts = one(tmp_path, *(called(rank, call=failed) for rank in (0, 1)))

    assert facts.rendezvous is not None
    assert facts.rendezvous.reach is Reach.NO_NAME
    assert codes(facts) == ["DD408"]


def test_a_rank_that_failed_by_itself_is_named_with_its_error(tmp_path: Path) -> None:
    failed = TIMED_OUT | {"error": "RuntimeError", "message": "no backend of this name"}

    code, finding = finding_of(tmp_path, called(0, call=WAITS), called(1, call=failed))

    assert code == "DD407"
    assert (finding.culprits, finding.victims) == ((1,), (0,))
    assert "RuntimeError: no backend of this name" in finding.message


def test_a_rank_that_did_not_come(tmp_path: Path) -> None:
    code, finding = finding_of(tmp_path, called(1, call=TIMED_OUT))

    assert code == "DD407"
    assert (finding.culprits, finding.victims) == ((0,), (1,))
    assert "1 of 2 ranks called init_process_group and waited 8 s" in finding.message


def test_ranks_of_another_node_may_have_notes_elsewhere(tmp_path: Path) -> None:
    four = {"WORLD_SIZE": "4"}
    ranks = [called(rank, world_size=4, told=four, call=TIMED_OUT) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert (code, finding.confidence) == ("DD407", Confidence.POSSIBLE)
    assert "on this host" in finding.message


def test_all_came_and_did_not_meet(tmp_path: Path) -> None:
    code, finding = finding_of(tmp_path, *(called(rank, call=TIMED_OUT) for rank in (0, 1)))

    assert code == "DD407"
    assert "did not reach the others within 8 s" in finding.message
    assert finding.culprits == ()


def test_a_further_group_at_the_store_of_the_one_before(tmp_path: Path) -> None:
    """The rank that comes first reads the other's old address, and waits there."""
    ranks = [called(rank, call=WAITS | {"again": True}) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert code == "DD407"
    assert "left its addresses in the store" in finding.message
    assert "keep it to the end" in finding.fix


def test_a_rank_that_was_ended_while_it_waited_for_one_that_never_called(tmp_path: Path) -> None:
    """As torchrun does it where a rank ends before it comes to init_process_group."""
    waited = called(0, pid=NOBODY, call=WAITS | {"waited_s": 0.0})

    code, finding = finding_of(tmp_path, replace(waited, host=socket.gethostname()))

    assert (code, finding.culprits) == ("DD407", (1,))
    assert finding.message == (
        "1 of 2 ranks called init_process_group at node0:29500; rank 1 did not"
    )


def test_all_that_were_ended_while_they_met_tell_nothing(tmp_path: Path) -> None:
    call = WAITS | {"waited_s": 0.0}
    ranks = [called(rank, pid=NOBODY + rank, call=call) for rank in (0, 1)]
    here = socket.gethostname()

    assert codes(one(tmp_path, *(replace(rank, host=here) for rank in ranks))) == []


def test_an_interrupt_is_nobodys_fault(tmp_path: Path) -> None:
    interrupted = {"outcome": Outcome.ENDED, "error": "KeyboardInterrupt"}

    assert codes(one(tmp_path, called(0, call=interrupted))) == []


def test_a_job_that_is_starting_has_no_verdict(tmp_path: Path) -> None:
    begun = WAITS | {"waited_s": 4.0}

    facts = one(tmp_path, called(1, call=begun))

    assert codes(facts) == []
    assert launch_verdict(tmp_path).why_none is not None


def test_only_the_newest_life_of_a_job_counts(tmp_path: Path) -> None:
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    before = [called(rank, call=TIMED_OUT) for rank in (0, 1)]
    now = [called(rank, pid=90 + rank, told=restarted) for rank in (0, 1)]

    assert codes(one(tmp_path, *before, *now)) == []


def test_ranks_that_train_without_a_model_of_ddp(tmp_path: Path) -> None:
    ranks = [called(rank, unsynced=Unsynced(20, 20)) for rank in (0, 1)]

    code, finding = finding_of(tmp_path, *ranks)

    assert code == "DD406"
    assert finding.culprits == (0, 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 10_000, b"x" * 100_000, encoded(replace(called(0), joining=None)),
     encoded(replace(called(0), world_size=2**62))],
)  # fmt: skip
def test_notes_that_cannot_be_are_counted(content: bytes, tmp_path: Path) -> None:
    noted(tmp_path, called(0), called(1))
    (tmp_path / FOLDER / "0-node9-77.json").write_bytes(content)
    (tmp_path / FOLDER / "half.tmp").write_bytes(b"{")

    launch = read_launch(tmp_path)

    assert launch.unreadable == 1
    assert len(launch.meetings[0].processes) == 2
    assert "1 of the processes" in launch_verdict(tmp_path).report.notes[0]


def test_where_none_can_be_read_there_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "0-node0-1.json").write_bytes(b"{}")

    assert has_notes(tmp_path)
    assert launch_verdict(tmp_path).why_none == "none of its notes can be read"


def test_a_launch_alone_is_a_run_to_report_on_and_none_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_DIR", str(tmp_path))
    run = tmp_path / "some-launch"
    noted(run, called(0))

    assert list_runs(tmp_path) == [run]
    assert attempts(run) == []
    assert launch_alone(None) == launch_alone(Path("some-launch")) == run
    with pytest.raises(NotARun):
        newest_run()


def test_a_name_given_again_forgets_what_was_left_on_this_host(tmp_path: Path) -> None:
    noted(tmp_path, called(0), called(1, host="node1"))

    forget_notes(tmp_path, "node0")

    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["0-node1-1001.json"]
