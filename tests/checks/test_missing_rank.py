"""DD903 missing-rank."""

from __future__ import annotations

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from ddpdoctor.hang.snapshot import RankProcess
from tests.hang_builders import (
    ALL_REDUCE,
    BUSY,
    STILL,
    at,
    codes,
    in_backward,
    in_record,
    only_finding,
    results,
    snapshot,
    user,
)


def sleeping(number: int | None, **facts):
    return at(number, user(25, "time.sleep(300)", "evaluate"), user(35, "evaluate()"), **facts)


def test_rank_0_alone_evaluates() -> None:
    code, finding = only_finding(snapshot(sleeping(0), in_backward(1), in_backward(2)))

    assert code == "DD903"
    assert finding.confidence is Confidence.LIKELY
    assert finding.culprits == (0,)
    assert finding.victims == (1, 2)
    assert finding.where[0].line == 25
    assert "timeout=" in finding.fix


def test_records_that_show_it_behind_make_it_certain() -> None:
    missing = sleeping(0, collectives=in_record(6, pending=False))

    _, finding = only_finding(snapshot(missing, in_backward(1, collectives=in_record(7))))

    assert finding.confidence is Confidence.CERTAIN


def test_a_rank_without_a_number_is_named_by_its_pid() -> None:
    _, finding = only_finding(snapshot(sleeping(None), in_backward(1)))

    assert finding.culprits == ()
    assert "pid 1099" in finding.message


def test_a_rank_that_has_not_joined_the_group() -> None:
    from tests.hang_builders import torch

    joining = at(0, torch("distributed/distributed_c10d.py", "init_process_group"), user(10))

    code, finding = only_finding(snapshot(joining, at(1, user(5, "download()"))))

    assert (code, finding.culprits) == ("DD903", (1,))
    assert "init_process_group" in finding.fix


def test_a_rank_that_waits_for_work_by_the_text_of_its_line_is_no_culprit() -> None:
    waiting = at(0, user(30, "handle.wait()"))

    _, finding = only_finding(snapshot(waiting, sleeping(1)))

    assert finding.culprits == (1,)


def test_a_wait_that_is_not_in_torch_is_elsewhere() -> None:
    pipe = at(0, user(30, "child.wait()"), wchan="do_wait")

    _, finding = only_finding(snapshot(pipe, in_backward(1)))

    assert finding.culprits == (0,)


def test_nobody_in_a_collective_is_no_verdict() -> None:
    said = results(snapshot(sleeping(0), sleeping(1)))

    assert said["DD903"].outcome is Outcome.SKIPPED
    assert "no rank waits in a collective" in (said["DD903"].reason or "")
    assert not [code for code, result in said.items() if result.findings]


def test_stacks_that_may_not_be_read_are_no_verdict() -> None:
    refused = at(1, threads=(), refusal="its stacks may not be read by this user")

    said = results(snapshot(in_backward(0), refused))

    assert said["DD903"].outcome is Outcome.SKIPPED
    assert "may not be read" in (said["DD903"].reason or "")


def test_a_busy_rank_is_not_missing() -> None:
    assert codes(snapshot(sleeping(0, movement=BUSY), in_backward(1))) == ["DD906"]


def test_all_in_one_call_miss_nobody() -> None:
    waiting = [at(rank, *ALL_REDUCE, user(30), movement=STILL) for rank in (0, 1)]

    assert codes(snapshot(*waiting)) == ["DD908"]


def test_without_the_right_to_read_stacks_the_records_tell() -> None:
    def unread(number: int, seq: int, *, pending: bool) -> RankProcess:
        refusal = "its stacks may not be read by this user"
        record = in_record(seq, pending=pending)
        return at(number, threads=(), refusal=refusal, collectives=record)

    seen = snapshot(unread(0, 8, pending=True), unread(1, 7, pending=False))

    code, finding = only_finding(seen)

    assert (code, finding.culprits, finding.victims) == ("DD903", (1,), (0,))
    assert "number 8" in finding.message
    assert "SYS_PTRACE" in finding.fix
