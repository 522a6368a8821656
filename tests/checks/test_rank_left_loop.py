"""DD902 rank-left-loop."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.findings import Confidence
from ddpdoctor.stackframes import Condition
from tests.hang_builders import (
    ALL_REDUCE,
    BARRIER,
    DESTROY,
    NEXT_BATCH,
    STEP_LOOP,
    at,
    codes,
    in_backward,
    in_record,
    only_finding,
    snapshot,
    user,
)


def test_a_rank_in_the_barrier_behind_the_loop() -> None:
    left = at(1, *BARRIER, user(50, "dist.barrier()"))

    code, finding = only_finding(snapshot(in_backward(0), left, in_backward(2)))

    assert code == "DD902"
    assert finding.confidence is Confidence.LIKELY
    assert finding.culprits == (1,)
    assert finding.victims == (0, 2)
    assert (finding.where[0].rank, finding.where[0].line) == (1, 50)
    assert "train.py:20-40" in finding.message


def test_records_that_pair_the_barrier_with_the_reduction_make_it_certain() -> None:
    left = at(1, *BARRIER, user(50), collectives=in_record(8, "barrier"))
    inside = [in_backward(rank, collectives=in_record(8)) for rank in (0, 2)]

    _, finding = only_finding(snapshot(inside[0], left, inside[1]))

    assert finding.confidence is Confidence.CERTAIN


def test_a_rank_whose_function_with_the_loop_has_returned() -> None:
    call = user(60, "train()", "main")
    inside = [at(rank, *ALL_REDUCE, user(30), call) for rank in (0, 2)]
    left = at(1, user(61, "save(model)", "main"))

    code, finding = only_finding(snapshot(inside[0], left, inside[1]))

    assert (code, finding.culprits) == ("DD902", (1,))


def test_a_rank_that_takes_the_group_down_has_certainly_left() -> None:
    left = at(1, *DESTROY, user(70, function="main"))

    code, finding = only_finding(snapshot(in_backward(0), left, in_backward(2)))

    assert (code, finding.confidence) == ("DD902", Confidence.CERTAIN)


def test_an_interpreter_that_is_ending_has_left() -> None:
    left = at(1, at(0, *DESTROY).threads[0].frames[0])

    assert codes(snapshot(in_backward(0), left, in_backward(2))) == ["DD902"]


def test_one_rank_in_the_loop_against_two_behind_it_is_the_odd_one() -> None:
    left = [at(rank, *BARRIER, user(50)) for rank in (1, 2)]

    _, finding = only_finding(snapshot(in_backward(0), *left))

    assert (finding.culprits, finding.victims) == ((0,), (1, 2))
    assert finding.confidence is Confidence.POSSIBLE
    assert "model.module" in finding.fix


def test_of_two_ranks_the_one_that_evaluates_is_the_odd_one() -> None:
    called = replace(user(35, function="main"), condition=Condition(34, "rank == 0", True))
    evaluates = at(0, *ALL_REDUCE, user(30, function="evaluate"), called)
    left = at(1, *BARRIER, user(50, function="main"))

    code, finding = only_finding(snapshot(evaluates, left))

    assert (code, finding.culprits) == ("DD902", (0,))
    assert finding.confidence is Confidence.POSSIBLE


def test_a_call_of_all_ranks_in_an_evaluation_of_all_blames_the_one_that_ran_out() -> None:
    evaluates = at(0, *ALL_REDUCE, user(30, function="evaluate"), user(35, function="main"))
    left = at(1, *BARRIER, user(50, function="main"))

    _, finding = only_finding(snapshot(evaluates, left))

    assert finding.culprits == (1,)


def test_of_two_ranks_in_training_the_one_that_left_is_named() -> None:
    _, finding = only_finding(snapshot(in_backward(0), at(1, *BARRIER, user(50))))

    assert (finding.culprits, finding.confidence) == ((1,), Confidence.LIKELY)


def test_of_two_ranks_outside_a_backward_it_is_only_possible() -> None:
    """The one inside may be a final evaluation on rank 0 that is not called so."""
    inside = at(0, *ALL_REDUCE, user(30, function="main"))

    _, finding = only_finding(snapshot(inside, at(1, *BARRIER, user(50, function="main"))))

    assert finding.confidence is Confidence.POSSIBLE


def test_another_line_of_the_same_loop_is_inside() -> None:
    seen = snapshot(in_backward(0), at(1, user(35, "time.sleep(9)")), in_backward(2))

    assert codes(seen) == ["DD903"]


def test_a_line_before_the_loop_is_not_behind_it() -> None:
    seen = snapshot(in_backward(0), at(1, user(10, "load()")), in_backward(2))

    assert codes(seen) == ["DD903"]


def test_the_validation_after_the_inner_loop_of_an_epoch_is_behind_it() -> None:
    from ddpdoctor.stackframes import Loop

    epochs = Loop(15, 60)
    inside = at(0, *ALL_REDUCE, user(30, loops=(epochs, STEP_LOOP)))
    validates = at(1, *NEXT_BATCH[:0], user(55, "validate()", loops=(epochs,)))

    assert codes(snapshot(inside, validates)) == ["DD902"]


def test_without_known_loops_it_is_a_missing_rank() -> None:
    def line(number: int):
        return user(number + 100)

    waiting = [at(rank, *ALL_REDUCE, line(1)) for rank in (0, 2)]

    assert codes(snapshot(waiting[0], at(1, line(5)), waiting[1])) == ["DD903"]
