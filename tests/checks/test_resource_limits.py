"""DD409."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launchfacts import LaunchFacts, Limits, Network
from ddpdoctor.tracefile import RankTrace
from tests.builders import StepTimes, own_loader, result_of, simulate, with_ranks
from tests.launch_builders import COMMON, codes, launch, only_finding, process, results

MIB = 2**20


def on_both(**limits: object) -> LaunchFacts:
    low = replace(COMMON, **limits)  # type: ignore[arg-type]
    return launch(*(process(rank, limits=low) for rank in (0, 1)))


def found(facts: LaunchFacts) -> Finding:
    code, finding = only_finding(facts)
    assert code == "DD409"
    return finding


def test_a_containers_usual_shared_memory_is_too_small() -> None:
    finding = found(on_both(shm_bytes=64 * MIB, shm_free_bytes=64 * MIB))

    assert finding.severity is Severity.WARNING  # whether workers will use it is not known
    assert finding.message == "node0 is set too low for 2 ranks on it: /dev/shm 64 MiB"
    assert "--shm-size" in finding.fix
    assert (finding.evidence[0].value, finding.evidence[0].threshold) == (64, 512)
    assert finding.hosts == ("node0",)


@pytest.mark.parametrize(
    ("workers", "backend", "severity"),
    [
        (2, "gloo", Severity.ERROR),
        (0, "nccl", Severity.WARNING),
        (None, "gloo", Severity.WARNING),
        (0, "gloo", Severity.INFO),
    ],
)
def test_who_uses_the_shared_memory_of_a_recorded_run(
    workers: int | None, backend: str, severity: Severity
) -> None:
    small = replace(COMMON, shm_bytes=64 * MIB, shm_free_bytes=60 * MIB)

    def add(trace: RankTrace) -> RankTrace:
        told = process(trace.info.rank, limits=small)
        loaders = {} if workers is None else {0: own_loader(trace, workers=workers)}
        info = replace(trace.info, backend=backend)
        return replace(trace, process=told, loaders=loaders, info=info)

    run = with_ranks(simulate(lambda rank, step: StepTimes(), 2), add)

    (finding,) = result_of("DD409", run).findings
    assert finding.severity is severity


def test_cpus_of_a_recorded_run_are_not_counted_but_measured() -> None:
    def add(trace: RankTrace) -> RankTrace:
        info = replace(trace.info, threads=8)
        return replace(trace, process=process(trace.info.rank), info=info)

    run = with_ranks(simulate(lambda rank, step: StepTimes(), 2), add)

    assert result_of("DD409", run).outcome is Outcome.CLEAN


def test_a_record_without_facts_of_the_launch_is_skipped() -> None:
    run = simulate(lambda rank, step: StepTimes(), 2)

    for code in ("DD402", "DD408", "DD409"):
        assert result_of(code, run).outcome is Outcome.SKIPPED


def test_shared_memory_that_is_full() -> None:
    assert "free in /dev/shm 1 MiB" in found(on_both(shm_free_bytes=MIB)).message


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"open_files": 256}, "open files 256"),
        ({"processes": 100}, "processes and threads 100"),
        ({"cpu_quota": 1.0}, "CPUs' worth of time 1"),
    ],
)
def test_other_limits_are_warnings(limits: dict[str, object], said: str) -> None:
    finding = found(on_both(**limits))

    assert finding.severity is Severity.WARNING
    assert said in finding.message


def test_many_ranks_need_more_files_than_a_shell_gives() -> None:
    facts = replace(on_both(), world_size=256, rendezvous=None)

    assert "open files 1024" in found(facts).message


def test_locked_memory_matters_to_infiniband_only() -> None:
    network = process(0).network
    with_card = Network(network.interfaces, network.own_address, infiniband=True)

    assert codes(on_both()) == []
    finding = found(launch(*(process(rank, network=with_card) for rank in (0, 1))))
    assert "locked memory 8 MiB" in finding.message


def test_ranks_that_take_all_cpus_each() -> None:
    finding = found(launch(*(process(rank, threads=8) for rank in (0, 1))))

    assert "set OMP_NUM_THREADS=4" in finding.fix[:1].lower() + finding.fix[1:]


def test_ranks_that_are_bound_to_one_cpu() -> None:
    """As `srun --cpu-bind` does it where a task was given one CPU."""
    finding = found(launch(*(process(rank, cpus=1, affinity=(3,)) for rank in (0, 1))))

    assert "CPUs that its ranks are bound to 1" in finding.message
    assert codes(launch(*(process(r, cpus=1, affinity=(r,)) for r in (0, 1)))) == []


def test_a_host_with_fewer_cpus_than_ranks_binds_nobody() -> None:
    limits = replace(COMMON, host_cpus=2)
    ranks = [process(rank, cpus=2, affinity=(0, 1), limits=limits) for rank in range(3)]

    assert codes(launch(*ranks)) == []


def test_ranks_that_share_the_cpus_are_clean() -> None:
    assert codes(launch(*(process(rank, threads=4) for rank in (0, 1)))) == []


def test_each_host_is_judged_by_itself() -> None:
    small = replace(COMMON, shm_bytes=64 * MIB, shm_free_bytes=64 * MIB)
    ranks = [process(0, "node0", local_world_size=1),
             process(1, "node1", local_world_size=1, limits=small)]  # fmt: skip

    finding = found(launch(*ranks))

    assert (finding.hosts, finding.culprits) == (("node1",), (1,))


def test_limits_that_nobody_knows_are_not_clean() -> None:
    unknown = launch(*(process(rank, limits=Limits()) for rank in (0, 1)))

    assert results(unknown)["DD409"].outcome is Outcome.SKIPPED
