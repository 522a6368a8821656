"""DD904 collective-mismatch."""

from __future__ import annotations

from ddpdoctor.findings import Confidence
from tests.hang_builders import (
    ALL_REDUCE,
    BARRIER,
    at,
    codes,
    in_backward,
    in_record,
    only_finding,
    snapshot,
    torch,
    user,
)

EVALUATION = (
    torch("nn/parallel/distributed.py", "DistributedDataParallel._pre_forward"),
    torch("nn/parallel/distributed.py", "DistributedDataParallel.forward"),
    torch("nn/modules/module.py", "Module._call_impl"),
)


def test_a_barrier_of_one_rank_within_the_loop() -> None:
    alone = at(0, *BARRIER, user(35, "dist.barrier()"))

    code, finding = only_finding(snapshot(alone, in_backward(1), in_backward(2)))

    assert code == "DD904"
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.culprits == (0,)


def test_one_against_one_names_nobody() -> None:
    code, finding = only_finding(snapshot(at(0, *BARRIER, user(35)), in_backward(1)))

    assert (code, finding.culprits) == ("DD904", ())
    assert {place.rank for place in finding.where} == {0, 1}


def test_the_record_of_a_rank_that_is_behind_names_it() -> None:
    behind = at(0, *BARRIER, user(35), collectives=in_record(4, "barrier"))

    _, finding = only_finding(snapshot(behind, in_backward(1, collectives=in_record(5))))

    assert (finding.culprits, finding.confidence) == ((0,), Confidence.LIKELY)


def test_an_evaluation_through_the_ddp_model_is_told_to_use_the_module() -> None:
    alone = at(0, *EVALUATION, user(36, "model(x)"))

    _, finding = only_finding(snapshot(alone, *(at(r, *BARRIER, user(38)) for r in (1, 2))))

    assert finding.culprits == (0,)
    assert "model.module" in finding.fix


def test_two_ranks_that_receive_from_each_other() -> None:
    def receives(number: int, line: int):
        return at(number, torch("distributed/distributed_c10d.py", "recv"), user(line))

    _, finding = only_finding(snapshot(receives(0, 30), receives(1, 32)))

    assert finding.culprits == ()
    assert "batch_isend_irecv" in finding.fix


def test_the_same_call_on_all_ranks_is_no_mismatch() -> None:
    assert codes(snapshot(*(at(r, *ALL_REDUCE, user(30)) for r in (0, 1)))) == ["DD908"]
