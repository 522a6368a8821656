"""Every use of DistributedDataParallel that people make, on real ranks, plain and recorded.

The programs are in `tests/programs/uses`. All run in one job without us and in one under
`ddpdoctor run`; each is then asked for the same things.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ddpdoctor import load_run
from ddpdoctor.events import Flag, Kind, Op, Phase
from ddpdoctor.tables import STEP_PHASES, Tables, build_tables
from ddpdoctor.tracefile import RankTrace, Run
from tests.launching import PROGRAMS, ddpdoctor_run, finish, finish_unrecorded, torchrun
from tests.programs.uses import USES
from tests.programs.uses.collectives import LATE_S
from tests.programs.uses.models import SLOW_BACKWARD_S, SLOW_FORWARD_S

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]  # both jobs count for the first test

PROGRAM = PROGRAMS / "every_use.py"
COLLECTIVE_USES = PROGRAMS / "uses" / "collectives.py"
RANKS = (0, 1)
LEAST_BUCKET = 64  # bytes; what else the reducer reduces has four for each parameter
SETTLED = 4  # backwards of one or two models; DDP rebuilds a model's buckets in its second
TERM_SHARE, TERM_MS = 0.02, 1.0  # of a step: what the terms may miss it by


@dataclass(frozen=True)
class Jobs:
    """What both jobs left behind."""

    folder: Path

    @cached_property
    def run(self) -> Run:
        (run,) = (self.folder / "ddpdoctor_runs").iterdir()
        return load_run(run)

    @cached_property
    def tables(self) -> Tables:
        return build_tables(self.run)

    def left(self, job: str, rank: int) -> dict[str, Any]:
        return torch.load(self.folder / f"{job}.{rank}.pt")

    def window(self, use: str, rank: int) -> tuple[int, int]:
        """When the recorded job was in this use, on the rank's own clock."""
        begin, end = json.loads((self.folder / f"recorded.{rank}.json").read_text())[use]
        return begin, end

    def detail(self, use: str, trace: RankTrace) -> np.ndarray:
        begin, end = self.window(use, trace.info.rank)
        began = trace.detail["begin_ns"]
        return trace.detail[(began >= begin) & (began < end)]

    def of_rank(self, frame: pd.DataFrame, rank: int, use: str, time: str) -> pd.DataFrame:
        begin, end = self.window(use, rank)
        return frame[(frame["rank"] == rank) & frame[time].between(begin, end)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("uses")
    plain = finish_unrecorded(torchrun(PROGRAM, "plain"), folder)
    assert plain.status == 0, plain.err
    recorded = finish(ddpdoctor_run(PROGRAM, "recorded"), folder)
    assert recorded.status == 0, recorded.err
    assert "recording is off" not in recorded.err
    return Jobs(folder)


@pytest.mark.parametrize("use", USES)
def test_training_is_as_without_us(use: str, jobs: Jobs) -> None:
    """All that it computed, bit by bit, and the errors that it saw."""
    for rank in RANKS:
        plain, recorded = jobs.left("plain", rank)[use], jobs.left("recorded", rank)[use]
        assert recorded["errors"] == plain["errors"]
        assert recorded["tensors"].keys() == plain["tensors"].keys()
        for name, expected in plain["tensors"].items():
            assert torch.equal(recorded["tensors"][name], expected), name


@pytest.mark.parametrize("use", USES)
def test_steps_and_synchronised_backwards_are_counted(use: str, jobs: Jobs) -> None:
    for trace in jobs.run.ranks:
        detail = jobs.detail(use, trace)
        begin, end = jobs.window(use, trace.info.rank)
        steps = trace.detail[trace.detail["kind"] == Kind.STEP]
        ended = steps[(steps["end_ns"] >= begin) & (steps["end_ns"] < end)]
        less = USES[use].less_on_rank_1 * trace.info.rank
        assert len(ended) == USES[use].steps - less
        after = trace.detail[trace.detail["begin_ns"] >= end]["sync"].min()
        assert after - detail["sync"].min() == USES[use].syncs - less


@pytest.mark.parametrize("use", USES)
def test_every_collective_and_span_is_closed_and_none_failed_by_mistake(
    use: str, jobs: Jobs
) -> None:
    for trace in jobs.run.ranks:
        detail = jobs.detail(use, trace)
        detail = detail[detail["kind"] != Kind.STEP]
        assert len(detail)
        open_ones = detail[(detail["end_ns"] == 0) & ~is_asynchronous_send(detail)]
        assert not len(open_ones), [(Kind(r["kind"]).name, r["code"]) for r in open_ones]
        assert np.count_nonzero(detail["flags"] & Flag.FAILED) == USES[use].failed


def is_asynchronous_send(detail: np.ndarray) -> np.ndarray:
    """Or receive: gloo does not tell when it completes."""
    flags = detail["flags"]
    return (flags & Flag.POINT_TO_POINT > 0) & (flags & Flag.BLOCKING == 0)


@pytest.mark.parametrize("use", [name for name, use in USES.items() if use.buckets])
def test_every_bucket_is_told_from_other_all_reduces(use: str, jobs: Jobs) -> None:
    for trace in jobs.run.ranks:
        detail = jobs.detail(use, trace)
        from_reducer = (detail["kind"] == Kind.COLLECTIVE) & (detail["flags"] & Flag.BUCKET > 0)
        first = detail["sync"].min() + SETTLED
        buckets = detail[
            from_reducer & (detail["nbytes"] >= LEAST_BUCKET) & (detail["sync"] >= first)
        ]
        assert (buckets["code"] == Op.ALL_REDUCE).all()
        assert (buckets["bucket"] >= 0).all(), buckets["bucket"]
        less = USES[use].less_on_rank_1 * trace.info.rank
        syncs = USES[use].syncs - less - SETTLED
        assert np.count_nonzero(buckets["bucket"] == 0) == USES[use].models * syncs


@pytest.mark.parametrize("use", USES)
def test_the_terms_add_up_to_the_step_in_both_records_of_it(use: str, jobs: Jobs) -> None:
    """In the rows that the recorder sums up, and in the tables that are made of the detail."""
    for trace in jobs.run.ranks:
        rank = trace.info.rank
        table = jobs.of_rank(jobs.tables.steps, rank, use, "end_ns")
        rows = pd.DataFrame(trace.steps).set_index("step").loc[table["step"]]
        for step, row in zip(table.itertuples(), rows.itertuples(), strict=True):
            allowed = max(TERM_SHARE * step.step_ns / 1e6, TERM_MS)
            spent = {phase: getattr(step, f"{phase.label}_ns") / 1e6 for phase in STEP_PHASES}
            assert sum(spent.values()) == pytest.approx(step.step_ns / 1e6, abs=1e-3)
            assert min(spent.values()) >= 0
            blocked = spent.pop(Phase.WAIT) + spent.pop(Phase.TRANSFER)
            spent[Phase.BLOCKED] = blocked
            recorded = {phase: getattr(row, f"{phase.label}_us") / 1e3 for phase in spent}
            assert sum(recorded.values()) == pytest.approx(step.step_ns / 1e6, abs=allowed)
            for phase, in_table in spent.items():
                assert recorded[phase] == pytest.approx(in_table, abs=allowed), phase


@pytest.mark.parametrize(
    "use", ["a_work_that_is_waited_for_later", "functional_collectives", "send_and_receive"]
)
def test_standing_in_wait_for_a_late_rank_is_wait(use: str, jobs: Jobs) -> None:
    """Rank 1 sleeps before the collective; rank 0 has issued its own and waits for the Work."""
    late_ms = LATE_S * 1e3
    waited, slept = (
        jobs.of_rank(jobs.tables.steps, rank, use, "end_ns").iloc[1:] for rank in RANKS
    )
    assert waited["wait_ns"].median() / 1e6 == pytest.approx(late_ms, rel=0.5)
    assert waited["between_ns"].median() / 1e6 < late_ms / 2
    assert slept["between_ns"].median() / 1e6 >= late_ms
    assert slept["wait_ns"].median() / 1e6 < late_ms / 2
    for trace in jobs.run.ranks:
        waits = jobs.detail(use, trace)
        waits = waits[waits["kind"] == Kind.WAIT]
        assert {trace.sites[site].file for site in waits["site"]} == {str(COLLECTIVE_USES)}


def test_a_blocking_call_has_no_wait_of_its_own(jobs: Jobs) -> None:
    for use in ("objects", "every_other_collective", "groups_of_some_ranks"):
        for trace in jobs.run.ranks:
            assert not (jobs.detail(use, trace)["kind"] == Kind.WAIT).any()


def test_buckets_and_times_are_those_of_torchs_own_logging(jobs: Jobs) -> None:
    """Forward, backward until its sync, and from the first bucket to the last one's end."""
    use = "with_torchs_own_logging"
    for trace in jobs.run.ranks:
        logged = jobs.left("recorded", trace.info.rank)[use]["logged"]
        detail = jobs.detail(use, trace)
        forwards, backwards, blocked = (
            detail[(detail["kind"] == Kind.SPAN) & (detail["code"] == phase)]
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BLOCKED)
        )
        buckets = detail[detail["flags"] & Flag.BUCKET > 0]
        off_ms: dict[str, list[float]] = {"forward": [], "backward": [], "communication": []}
        for step, (forward, backward, sync) in enumerate(
            zip(forwards[:-1], backwards[:-1], blocked[:-1], strict=True)
        ):
            theirs = logged[step + 1]  # of the step before
            own = buckets[buckets["sync"] == backward["sync"]]
            sizes = theirs["rebuilt_bucket_sizes"] if step else theirs["bucket_sizes"]
            assert [str(size) for size in own["nbytes"]] == sizes.split(", ")
            for name, ours_ns, key in (
                ("forward", backward["begin_ns"] - forward["begin_ns"], "forward_compute_time"),
                ("backward", sync["begin_ns"] - backward["begin_ns"], "backward_compute_time"),
                ("communication", sync["end_ns"] - own["begin_ns"].min(), "backward_comm_time"),
            ):
                off_ms[name].append((ours_ns - theirs[key]) / 1e6)
        for name, slow_s in (
            ("forward", SLOW_FORWARD_S), ("backward", SLOW_BACKWARD_S),
            ("communication", SLOW_BACKWARD_S),
        ):  # fmt: skip
            assert abs(np.median(off_ms[name])) <= max(0.1 * slow_s * 1e3, 2.0), (name, off_ms)


def test_a_model_may_go_after_its_process_group(tmp_path: Path) -> None:
    """The group joins its threads with the interpreter's lock held; none may still want that."""
    done = finish(torchrun(PROGRAMS / "model_outlives_its_group.py"), tmp_path)

    assert done.status == 0, done.err
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    assert all(trace.closed and len(trace.steps) for trace in load_run(run).ranks)
