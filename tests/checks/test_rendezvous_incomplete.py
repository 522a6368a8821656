"""DD407."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.findings import Severity
from ddpdoctor.hang.snapshot import WaitingLauncher
from ddpdoctor.launchfacts import LaunchFacts, Reach
from tests import hang_builders
from tests.hang_builders import at, snapshot, torch, user
from tests.launch_builders import codes, launch, met, only_finding, process, two_hosts

JOINING = (
    torch("distributed/rendezvous.py", "_env_rendezvous_handler"),
    torch("distributed/distributed_c10d.py", "init_process_group"),
)


def joining(number: int, line: int = 10) -> hang_builders.RankProcess:
    return at(number, *JOINING, user(line, "dist.init_process_group('gloo')"))


def test_the_missing_ranks_and_their_node_are_named() -> None:
    came = [process(rank, world_size=4) for rank in (0, 1)]

    code, finding = only_finding(launch(*came, world_size=4))

    assert code == "DD407"
    assert finding.message == (
        "2 of 4 ranks came to node0:29500 within 5 s; ranks 2 and 3 are missing (of node 1, "
        "counted from 0)"
    )
    assert (finding.culprits, finding.victims, finding.hosts) == ((2, 3), (0, 1), ())


def test_where_the_scheduler_named_the_hosts_the_silent_one_is_named() -> None:
    came = [process(rank, world_size=4) for rank in (0, 1)]
    facts = launch(*came, world_size=4, nodes=("node0", "node7"))

    _, finding = only_finding(facts)

    assert "(nobody came from node7)" in finding.message
    assert finding.hosts == ("node7",)


def test_an_address_that_does_not_answer() -> None:
    facts = LaunchFacts((process(1, "node1"),), 2, met(Reach.NO_ANSWER))

    code, finding = only_finding(facts)

    assert code == "DD407"
    assert "rank 1 on node1 cannot reach node0:29500" in finding.message
    assert "firewall" in finding.fix


def test_an_address_where_nobody_listens() -> None:
    facts = LaunchFacts((process(1, "node1"),), 2, met(Reach.REFUSED))

    _, finding = only_finding(facts)

    assert "nobody listens there" in finding.message


def test_all_that_should_come_is_clean() -> None:
    assert codes(two_hosts()) == []


def test_ranks_that_hang_in_joining_name_those_that_are_not_here() -> None:
    code, finding = hang_builders.only_finding(snapshot(joining(0), joining(2), world_size=3))

    assert code == "DD407"
    assert finding.severity is Severity.ERROR
    assert finding.message == (
        "ranks 0 and 2 wait in init_process_group (train.py:10) for all 3 ranks to meet at "
        "10.0.0.1:29500; rank 1 is not on this host"
    )
    assert (finding.culprits, finding.victims) == ((1,), (0, 2))


def test_the_lines_at_which_they_join_need_not_be_the_same() -> None:
    code, _ = hang_builders.only_finding(snapshot(joining(0), joining(1, 12), world_size=3))

    assert code == "DD407"


def test_a_rank_of_this_host_that_does_not_join_is_another_matter() -> None:
    elsewhere = at(1, user(5, "time.sleep(99)"))

    code, _ = hang_builders.only_finding(snapshot(joining(0), elsewhere))

    assert code == "DD903"


def test_ranks_in_a_collective_are_another_matter() -> None:
    reducing = [at(n, *hang_builders.ALL_REDUCE, user(30, "dist.all_reduce(x)")) for n in (0, 1)]

    assert hang_builders.codes(snapshot(*reducing, world_size=4)) == []


def test_a_world_size_that_cannot_be_is_no_list_of_missing_ranks() -> None:
    assert "DD407" not in hang_builders.codes(snapshot(joining(0), world_size=10**12))


def test_a_launcher_that_waits_for_other_nodes() -> None:
    waits = WaitingLauncher(77, "next_rendezvous", "2", "node0:29500")
    seen = replace(snapshot(), launcher=waits)

    code, finding = hang_builders.only_finding(seen)

    assert code == "DD407"
    assert finding.message == (
        "the launcher (pid 77) waits for the others of 2 nodes to meet at node0:29500, and has "
        "started no rank"
    )
