"""From the calls of the ranks to the cause: real dumps of NCCL, and made ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from tests.dump_builders import call, only_finding, results, scene, sent, write
from tests.launching import ROOT, ddpdoctor, finish

BESIDE = [folder / "shared" / "traces" / "flight_recorder" for folder in ROOT.parents]
REAL = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[0])
real_dumps = pytest.mark.skipif(
    not REAL.is_dir(), reason="the dumps of 16 real NCCL ranks lie beside the repository, if at all"
)
DONE = [call(1, done=True), call(2, done=True, at=11)]
WAITS = [*DONE, call(3, at=12)]


@real_dumps
def test_real_dumps_of_16_ranks_two_of_which_had_a_gpu_error() -> None:
    code, finding = only_finding(REAL / "gpu_error_1st")

    assert (code, finding.culprits) == ("DD908", (12, 14))
    assert finding.confidence is Confidence.LIKELY
    assert set(finding.victims) == set(range(16)) - {12, 14}


@real_dumps
def test_real_dumps_of_16_ranks_two_of_which_kept_the_gil() -> None:
    code, finding = only_finding(REAL / "lock_gil_1st")

    assert (code, finding.culprits) == ("DD903", (9, 14))
    assert finding.confidence is Confidence.LIKELY


@real_dumps
@pytest.mark.parametrize("without", [9, 14])
def test_real_dumps_without_the_one_of_a_culprit(tmp_path: Path, without: int) -> None:
    folder = tmp_path / "dumps"
    shutil.copytree(REAL / "lock_gil_1st", folder)
    (folder / f"_dump_{without}").unlink()

    said = results(folder)

    assert [f.culprits for f in said["DD901"].findings] == [(without,)]
    assert [f.culprits for f in said["DD903"].findings] == [tuple({9, 14} - {without})]
    assert all(f.confidence is Confidence.POSSIBLE for r in said.values() for f in r.findings)


@real_dumps
@pytest.mark.parametrize("without", range(8))
def test_real_dumps_without_the_one_of_a_victim_still_name_the_culprits(
    tmp_path: Path, without: int
) -> None:
    """Nobody waits for ranks 0 to 7."""
    folder = tmp_path / "dumps"
    shutil.copytree(REAL / "lock_gil_1st", folder)
    (folder / f"_dump_{without}").write_bytes(b"")

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD903", (9, 14))


def test_a_rank_that_is_in_no_call(tmp_path: Path) -> None:
    code, finding = only_finding(write(tmp_path, {0: WAITS, 1: DONE, 2: WAITS}))

    assert (code, finding.culprits, finding.victims) == ("DD903", (1,), (0, 2))
    assert finding.confidence is Confidence.LIKELY
    assert "its last call was all_reduce (number 2 of group 0) at train.py:11" in finding.message
    assert finding.where[0].line == 11


def test_a_rank_that_never_made_a_call(tmp_path: Path) -> None:
    code, finding = only_finding(write(tmp_path, {0: WAITS, 1: [], 2: WAITS}))

    assert (code, finding.culprits) == ("DD903", (1,))
    assert "its dump holds no call" in finding.message


def test_nothing_pending_is_no_verdict(tmp_path: Path) -> None:
    said = results(write(tmp_path, {0: DONE, 1: DONE}))

    assert said["DD903"].outcome is Outcome.SKIPPED
    assert not any(result.findings for result in said.values())


def test_all_in_one_call(tmp_path: Path) -> None:
    code, finding = only_finding(write(tmp_path, {0: WAITS, 1: WAITS}))

    assert (code, finding.culprits, finding.victims) == ("DD908", (), (0, 1))
    assert {place.line for place in finding.where} == {12}


def test_a_rank_whose_dump_is_missing_while_all_others_wait_for_it(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: WAITS, 1: WAITS, 2: WAITS}, g0=[0, 1, 2, 3])

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD901", (3,))
    assert finding.confidence is Confidence.LIKELY

    (folder / "nccl_trace_rank_3").write_bytes(b"")
    _, finding = only_finding(folder)
    assert "nccl_trace_rank_3: it is empty" in str(finding.evidence)


def test_one_dump_of_many_is_too_little_to_blame_the_others(tmp_path: Path) -> None:
    said = results(write(tmp_path, {0: WAITS}, g0=[0, 1, 2, 3]))

    assert not any(result.findings for result in said.values())
    assert said["DD901"].outcome is Outcome.SKIPPED
    assert "only 1 of 4 ranks left a dump" in (said["DD901"].reason or "")


def test_chains_lead_to_the_rank_that_waits_for_nobody(tmp_path: Path) -> None:
    """3 waits for 2, 2 for 1, 1 for 0: the first three are victims."""
    folder = write(
        tmp_path,
        {0: [], 1: [call(1, group="5")], 2: [call(1, group="6")], 3: [call(1, group="7")]},
        g0=[0, 1, 2, 3], g5=[0, 1], g6=[1, 2], g7=[2, 3],
    )  # fmt: skip

    code, finding = only_finding(folder)

    assert (code, finding.culprits, finding.victims) == ("DD903", (0,), (1, 2, 3))


def test_a_call_that_the_others_have_completed(tmp_path: Path) -> None:
    done = [*DONE, call(3, done=True)]

    code, finding = only_finding(
        write(tmp_path, {0: [*done, call(4)], 1: WAITS, 2: [*done, call(4)]}, g0=[0, 1, 2])
    )

    assert (code, finding.culprits) == ("DD908", (1,))
    assert "ranks 0 and 2 have completed it" in str(finding.evidence)


def test_a_device_that_has_not_begun_what_the_others_have(tmp_path: Path) -> None:
    """torch tells so where it times NCCL's calls."""
    begun = [*DONE, call(3, state="started")]

    code, finding = only_finding(write(tmp_path, {0: begun, 1: WAITS, 2: begun}))

    assert (code, finding.culprits, finding.victims) == ("DD908", (1,), (0, 2))


def test_a_root_may_be_done_with_a_broadcast_before_the_others(tmp_path: Path) -> None:
    leaf = [*DONE, call(3, "broadcast")]
    root = [*DONE, call(3, "broadcast", done=True)]

    _, finding = only_finding(write(tmp_path, {0: root, 1: leaf, 2: leaf}))

    assert finding.culprits == ()


def test_what_torch_forgot_to_note_as_done_is_done_once_a_later_call_is(tmp_path: Path) -> None:
    forgot = [call(1), call(2, done=True, at=11), call(3, at=12)]

    code, finding = only_finding(write(tmp_path, {0: forgot, 1: DONE, 2: WAITS}))

    assert (code, finding.culprits) == ("DD903", (1,))


def test_several_calls_under_way_count_as_the_oldest(tmp_path: Path) -> None:
    """DDP's buckets are issued without waiting."""
    buckets = [*DONE, call(3), call(4), call(5)]

    code, finding = only_finding(write(tmp_path, {0: buckets, 1: [*DONE, call(3)], 2: buckets}))

    assert (code, finding.culprits) == ("DD908", ())


def test_a_matching_send_and_receive_are_one_call(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {0: [sent(0, 1)], 1: [sent(1, 0, receives=True)]}, g0=[0, 1]
    )  # fmt: skip

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD908", ())


def test_a_receiver_waits_for_a_sender_that_does_something_else(tmp_path: Path) -> None:
    receives = sent(1, 0, receives=True)
    folder = write(tmp_path, {0: [], 1: [receives], 2: [call(1)]}, g0=[0, 1, 2])

    said = results(folder)

    assert [f.culprits for f in said["DD903"].findings] == [(0,)]
    assert scene(folder).awaits[1] == {0}


def test_names_from_dumps_cannot_steer_a_terminal(tmp_path: Path) -> None:
    evil = [*DONE, call(3, "\x1b[2Jreduce", frames=[], process_group=["\x1b]0;x\x07", ""])]
    folder = write(tmp_path, {0: evil, 1: evil})

    done = finish(ddpdoctor("diagnose", str(folder), "-v"), ROOT, seconds=30)

    assert done.status == 1
    assert "reduce" in done.out
    assert not set("\x1b\x07") & set(done.out + done.err)


def test_members_that_no_rank_could_be_do_no_harm(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: WAITS, 1: [sent(1, 3)]}, g0=[0, 1, 9_999_999, 7])

    said = results(folder)

    assert scene(folder).awaits[1] == {7}
    assert [f.confidence for f in said["DD901"].findings] == [Confidence.POSSIBLE]
