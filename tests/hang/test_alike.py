"""Starts that hang: ranks that were not started alike, or whose models were not wrapped alike."""

from __future__ import annotations

import pytest

from ddpdoctor.findings import Confidence
from ddpdoctor.hang.alike import SCRIPT, started_as, started_with
from ddpdoctor.hang.processes import Processes
from ddpdoctor.stackframes import Frame
from tests.hang.fake_proc import FakeProc
from tests.hang_builders import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    BUSY,
    at,
    codes,
    in_backward,
    only_finding,
    snapshot,
    torch,
    user,
)

JOINS = (torch("distributed/distributed_c10d.py", "init_process_group"), user(5, "init()"))
WRAPS = (
    torch("distributed/utils.py", "_verify_param_shape_across_processes"),
    torch("nn/parallel/distributed.py", "DistributedDataParallel.__init__"),
    user(9, "model = DDP(model)"),
)
COPIES = (
    torch("distributed/utils.py", "_sync_module_states"),
    torch("nn/parallel/distributed.py", "DistributedDataParallel.__init__"),
    user(9, "model = DDP(model)"),
)
ALIKE = ((SCRIPT, "train.py"),)
DETAIL = (("TORCH_DISTRIBUTED_DEBUG", "DETAIL"), *ALIKE)


@pytest.fixture
def proc(tmp_path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_variable_that_only_one_rank_has() -> None:
    ranks = [at(r, *WRAPS, started=ALIKE) for r in (0, 2)]

    code, finding = only_finding(snapshot(ranks[0], at(1, *JOINS, started=DETAIL), ranks[1]))

    assert (code, finding.culprits, finding.victims) == ("DD404", (1,), (0, 2))
    assert finding.confidence is Confidence.LIKELY
    assert "TORCH_DISTRIBUTED_DEBUG differs" in finding.message
    assert "(not set) on ranks 0 and 2; DETAIL on rank 1" in str(finding.evidence[0].value)


def test_two_scripts() -> None:
    code, finding = only_finding(
        snapshot(
            at(0, *BARRIER, user(9), started=((SCRIPT, "train.py"),)),
            at(1, *ALL_REDUCE, user(14), started=((SCRIPT, "train_old.py"),)),
        )
    )

    assert (code, finding.culprits) == ("DD404", ())
    assert "same script" in finding.fix


def test_within_a_loop_the_start_is_long_over() -> None:
    early = at(1, *BARRIER, user(35), started=DETAIL)

    assert codes(snapshot(in_backward(0, started=ALIKE), early)) == ["DD904"]


def test_started_alike_the_calls_are_the_matter() -> None:
    ranks = at(0, *BARRIER, user(9), started=DETAIL), at(1, *ALL_REDUCE, user(14), started=DETAIL)

    assert codes(snapshot(*ranks)) == ["DD904"]


def test_arguments_of_ddp_by_which_it_makes_other_calls() -> None:
    def told(searches: str) -> tuple[tuple[str, str], ...]:
        return (("bucket_bytes_cap", searches), ("find_unused_parameters", searches))

    forward = (torch("nn/parallel/distributed.py", "forward"), user(28, "model(x)"))
    ranks = in_backward(0, settings=told("True")), at(1, *forward, settings=told("False"))

    code, finding = only_finding(snapshot(*ranks))

    assert (code, finding.culprits) == ("DD405", ())
    assert "find_unused_parameters" in finding.message
    assert "bucket_bytes_cap" not in str(finding)
    assert "same arguments" in finding.fix


def test_a_rank_that_has_not_wrapped_its_model() -> None:
    past = at(1, *BARRIER, user(14, "dist.barrier()"))

    code, finding = only_finding(snapshot(at(0, *WRAPS), past))

    assert (code, finding.culprits, finding.victims) == ("DD406", (1,), (0,))
    assert "train.py:9 `model = DDP(model)`" in finding.message
    assert finding.where[0].line == 14


def test_one_that_trains_alone_meanwhile_is_none_to_wait_for() -> None:
    alone = at(1, *BACKWARD[1:], user(30, "loss.backward()"), movement=BUSY)

    code, finding = only_finding(snapshot(at(0, *WRAPS), alone))

    assert (code, finding.culprits) == ("DD406", (1,))


@pytest.mark.parametrize(
    ("stack", "movement"),
    [((user(7, "time.sleep(60)"),), {}), ((user(14, "step()"),), {"movement": BUSY})],
)
def test_ranks_before_the_line_or_behind_the_first_collective_may_wrap(
    stack: tuple[Frame, ...], movement: dict[str, object]
) -> None:
    """Rank 0 sends its parameters in the constructor and may be done with that before others."""
    waits = at(0, *(WRAPS if not movement else COPIES))

    assert "DD406" not in codes(snapshot(waits, at(1, *stack, **movement)))


def test_what_a_process_was_started_with(proc: FakeProc) -> None:
    env = {"NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abcdefghijk"}
    proc.add(104, 10, env=env, command=("python", "-u", "/home/user/train.py", "--lr", "0.1"))

    found = started_with(104, Processes(proc.root))

    assert found == (("NCCL_PROTO", "Simple"), (SCRIPT, "train.py"))
    assert started_with(105, Processes(proc.root)) == ()


def test_the_same_by_a_record() -> None:
    command = ("/usr/bin/python", "-m", "package.train", "x.py")

    assert started_as(command, {"NCCL_ALGO": "Ring"}) == (
        ("NCCL_ALGO", "Ring"),
        (SCRIPT, "-m package.train"),
    )
    assert started_as((), {"NCCL_ALGO": "Ring"}) == ()
