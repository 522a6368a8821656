"""DD904 collective-mismatch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import End, EndKind, Kind, Op, Phase
from ddpdoctor.findings import Confidence
from ddpdoctor.tracefile import RankTrace, Run
from tests import dump_builders as dumps
from tests.builders import START_NS, StepTimes, result_of, simulate, with_ranks
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


DONE = [dumps.call(1, done=True), dumps.call(2, done=True)]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (dumps.call(3, "barrier", at=35, size=[], input_sizes=[]), "rank 1 barrier at train.py:35"),
        (dumps.call(3, size=[8, 2]), "rank 1 all_reduce at train.py:10 of 8x2 Float"),
        (dumps.call(3, input_dtypes=["Half"]), "rank 1 all_reduce at train.py:10 of 4 Half"),
    ],
    ids=["operation", "size", "type"],
)
def test_calls_with_one_number_that_differ_in_dumps(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    waits = [*DONE, dumps.call(3)]
    folder = dumps.write(tmp_path, {0: waits, 1: [*DONE, other], 2: waits})

    code, finding = dumps.only_finding(folder)

    assert (code, finding.culprits, finding.confidence) == ("DD904", (1,), Confidence.LIKELY)
    assert said in finding.message


def test_gloo_completes_the_smaller_of_two_sizes(tmp_path: Path) -> None:
    """That rank goes on, and the other would be blamed for the call that does not complete."""
    smaller = [*DONE, dumps.call(3, size=[2], done=True), dumps.call(4)]
    folder = dumps.write(tmp_path, {0: [*DONE, dumps.call(3)], 1: smaller})

    code, finding = dumps.only_finding(folder)

    assert (code, finding.culprits) == ("DD904", ())
    assert len(finding.where) == 2


def test_sizes_may_differ_where_each_rank_has_its_own(tmp_path: Path) -> None:
    ranks = {rank: [*DONE, dumps.call(3, "all_to_all", size=[rank + 1])] for rank in (0, 1)}

    assert dumps.only_finding(dumps.write(tmp_path, ranks))[0] == "DD908"


def test_two_sends_that_wait_for_each_other_in_dumps(tmp_path: Path) -> None:
    ranks = {0: [dumps.sent(0, 1)], 1: [dumps.sent(1, 0)]}

    code, finding = dumps.only_finding(dumps.write(tmp_path, ranks, g0=[0, 1]))

    assert (code, finding.culprits) == ("DD904", (0, 1))
    assert "batch_isend_irecv" in finding.fix


def test_different_sizes_in_one_line_as_recorded_ranks_tell() -> None:
    """By their stacks all are in the same call, and the network would be the suspect."""
    same, larger = (dumps.calls_in([*DONE, dumps.call(3, size=[n])]) for n in (4, 6))
    ranks = [at(rank, *ALL_REDUCE, user(30), calls=same) for rank in (0, 1)]

    code, finding = only_finding(snapshot(*ranks, at(2, *ALL_REDUCE, user(30), calls=larger)))

    assert (code, finding.culprits) == ("DD904", (2,))
    assert "rank 2 all_reduce of 6 Float" in finding.message

    alike = [at(rank, *ALL_REDUCE, user(30), calls=same) for rank in (0, 1, 2)]
    assert codes(snapshot(*alike)) == ["DD908"]


def stands_in(run: Run, ops: dict[int, Op], *, closed: bool = False) -> Run:
    """Each rank stands in the last collective, which some call differently."""

    def end(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        last = (detail["kind"] == Kind.COLLECTIVE) & (detail["seq"] == detail["seq"].max())
        detail["end_ns"] = np.where(last, 0, detail["end_ns"])
        detail["code"] = np.where(
            last, int(ops.get(trace.info.rank, Op.ALL_REDUCE)), detail["code"]
        )
        return replace(trace, detail=detail, closed=closed)

    return with_ranks(run, end)


def test_a_record_that_ends_in_different_calls() -> None:
    run = stands_in(simulate(lambda r, s: StepTimes(), 3), {1: Op.BARRIER})

    (finding,) = result_of("DD904", run).findings

    assert (finding.culprits, finding.victims) == ((1,), (0, 2))
    assert "rank 1 barrier" in finding.message
    assert "ranks 0 and 2 all_reduce" in finding.message


def test_ranks_that_gave_up_after_the_timeout_closed_their_records_all_the_same() -> None:
    """As in a checkpoint with a barrier that only rank 0 comes to."""
    run = stands_in(simulate(lambda r, s: StepTimes(), 2), {0: Op.BARRIER}, closed=True)
    error = "Timed out waiting 8000ms for recv operation to complete"
    end = End(EndKind.EXCEPTION, START_NS, 9, Phase.BLOCKED, "RuntimeError", error)

    (finding,) = result_of("DD904", with_ranks(run, lambda t: replace(t, end=end))).findings

    assert finding.culprits == ()  # one against one
    assert "rank 0 barrier" in finding.message
    assert "rank 1 all_reduce" in finding.message
    assert result_of("DD904", run).outcome is Outcome.CLEAN  # an end without an error


def test_the_root_of_a_broadcast_that_others_do_not_make_may_be_ahead() -> None:
    """Rank 0 completed its broadcast; the others stand in a barrier of that number."""
    run = simulate(lambda r, s: StepTimes(), 3)
    last = max(trace.detail["seq"].max() for trace in run.ranks)

    def end(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        before = (detail["kind"] == Kind.COLLECTIVE) & (detail["seq"] == last - 1)
        behind = (detail["kind"] == Kind.COLLECTIVE) & (detail["seq"] == last)
        is_root = trace.info.rank == 0
        detail["code"] = np.where(before, int(Op.BROADCAST if is_root else Op.BARRIER),
                                  detail["code"])  # fmt: skip
        detail["end_ns"] = np.where(behind if is_root else before, 0, detail["end_ns"])
        return replace(trace, detail=detail if is_root else detail[~behind], closed=False)

    run = with_ranks(run, end)

    (finding,) = result_of("DD904", run).findings
    assert finding.culprits == (0,)
    assert result_of("DD913", run).outcome is Outcome.CLEAN


@pytest.mark.parametrize(("ops", "closed"), [({}, False), ({1: Op.BARRIER}, True)])
def test_a_record_that_ends_in_one_call_or_was_closed(ops: dict[int, Op], closed: bool) -> None:
    run = stands_in(simulate(lambda r, s: StepTimes(), 3), ops, closed=closed)

    assert result_of("DD904", run).outcome is Outcome.CLEAN
