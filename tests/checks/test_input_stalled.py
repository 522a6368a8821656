"""DD907 input-stalled."""

from __future__ import annotations

from ddpdoctor.findings import Confidence
from ddpdoctor.hang.snapshot import LoaderWorker, ThreadStack
from ddpdoctor.stackframes import Frame, Origin
from tests.hang_builders import (
    NEXT_BATCH,
    at,
    codes,
    in_backward,
    only_finding,
    snapshot,
    torch,
    user,
    worker,
)

LOOP_LINE = user(20, "for batch in loader:")
IDLE = worker(Frame("/usr/lib/python3.11/selectors.py", 415, "select", Origin.PYTHON))
STUCK = worker(Frame("/home/user/data.py", 7, "Images.__getitem__", Origin.USER, "read(path)"))


def test_the_worker_in_the_dataset_is_named() -> None:
    waits = at(1, *NEXT_BATCH, LOOP_LINE, workers=(IDLE, STUCK))

    code, finding = only_finding(snapshot(in_backward(0), waits))

    assert code == "DD907"
    assert finding.confidence is Confidence.LIKELY
    assert finding.culprits == (1,)
    assert finding.victims == (0,)
    assert (finding.where[0].file, finding.where[0].line) == ("/home/user/data.py", 7)


def test_idle_workers_name_no_line_of_the_dataset() -> None:
    waits = at(1, *NEXT_BATCH, LOOP_LINE, workers=(IDLE, IDLE))

    _, finding = only_finding(snapshot(in_backward(0), waits))

    assert finding.confidence is Confidence.POSSIBLE
    assert finding.where[0].line == 20


def test_a_dead_worker() -> None:
    waits = at(1, *NEXT_BATCH, LOOP_LINE, workers=(LoaderWorker(2001, "Z"),))

    _, finding = only_finding(snapshot(in_backward(0), waits))

    assert "is dead" in finding.message
    assert "/dev/shm" in finding.fix


def test_a_worker_that_never_came_out_of_fork() -> None:
    fork = Frame("/usr/lib/python3.11/multiprocessing/popen_fork.py", 66, "_launch", Origin.PYTHON)
    stuck = LoaderWorker(2002, "S", ThreadStack(2002, "MainThread", (fork,)))
    waits = at(1, *NEXT_BATCH, LOOP_LINE, workers=(IDLE, stuck))

    _, finding = only_finding(snapshot(in_backward(0), waits))

    assert "worker pid 2002 hangs in fork" in finding.message
    assert finding.confidence is Confidence.LIKELY
    assert "forkserver" in finding.fix


def test_a_dataset_that_is_read_by_the_rank_itself() -> None:
    fetch = torch("utils/data/dataloader.py", "_SingleProcessDataLoaderIter._next_data")
    reads = at(1, user(70, "read(path)", "__getitem__"), fetch, LOOP_LINE)

    code, finding = only_finding(snapshot(in_backward(0), reads))

    assert code == "DD907"
    assert finding.where[0].line == 70


def test_all_ranks_wait_for_their_input() -> None:
    waits = [at(rank, *NEXT_BATCH, LOOP_LINE, workers=(STUCK,)) for rank in (0, 1)]

    code, finding = only_finding(snapshot(*waits))

    assert (code, finding.culprits) == ("DD907", (0, 1))


def test_a_rank_elsewhere_is_not_waiting_for_input() -> None:
    assert codes(snapshot(in_backward(0), at(1, user(25, "lock.acquire()")))) == ["DD903"]
