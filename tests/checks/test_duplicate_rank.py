"""DD401."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from tests import hang_builders
from tests.launch_builders import codes, launch, only_finding, process


def test_two_processes_with_one_number_are_named_and_so_is_the_rank_that_nobody_is() -> None:
    twice = [process(1, pid=pid, environment={"SLURM_PROCID": str(pid)}) for pid in (11, 12)]

    code, finding = only_finding(launch(process(0), *twice, world_size=3))

    assert code == "DD401"  # and not DD407, although rank 2 is missing
    assert finding.severity is Severity.ERROR
    assert finding.message == (
        "2 processes claim rank 1: pid 11 on node0, pid 12 on node0, and nobody is rank 2"
    )
    assert [each.value for each in finding.evidence] == ["SLURM_PROCID=11", "SLURM_PROCID=12"]


def test_of_nodes_that_meet_the_number_is_a_nodes() -> None:
    nodes = [process(0, f"node{n}", unit="node") for n in (0, 1)]

    _, finding = only_finding(launch(*nodes, world_size=2))

    assert finding.message.startswith("2 processes claim node 0: ")
    assert finding.message.endswith("and nobody is node 1")


def test_one_process_a_rank_is_clean() -> None:
    assert codes(launch(process(0), process(1))) == []


def test_in_a_hang_two_living_processes_with_one_number_are_named() -> None:
    joining = (hang_builders.torch("distributed/distributed_c10d.py", "init_process_group"),)
    frames = (*joining, hang_builders.user(10, "dist.init_process_group()"))
    ranks = [hang_builders.at(0, *frames), hang_builders.at(0, *frames)]

    result = hang_builders.results(hang_builders.snapshot(*ranks, world_size=2))["DD401"]

    (finding,) = result.findings
    assert finding.message.endswith("and nobody is rank 1")
