"""Replaying recorded steps: laws of the model, and gains against a run that is really changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpdoctor.analysis import analyze
from ddpdoctor.analysis.gain import Playing
from ddpdoctor.analysis.gaintypes import Fix
from ddpdoctor.analysis.replay import Link, Steps, replay, transfers
from ddpdoctor.events import Kind
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, simulate
from tests.link_builders import over_link

LINK = Link(0.3, 50_000.0, 2)


def made_steps(
    own_ms: list[float], nbytes: list[float], blocks: list[bool], taken_ms: float = 2.0
) -> Steps:
    """Five steps of two ranks, of which the second is a little behind in its work."""
    count = len(nbytes)
    own = np.array([own_ms, [1.1 * each for each in own_ms]])
    every = np.broadcast_to(own, (5, 2, count + 1)).copy()
    blocking = np.array(blocks)
    steps = Steps(
        np.zeros((5, 2)), every, np.array(nbytes), blocking,
        np.where(blocking, np.full((5, count), taken_ms), 0.0), np.zeros((5, 2, count)),
        np.zeros(5), np.zeros(5), np.arange(count), np.full((5, 2), min(own_ms)),
    )  # fmt: skip
    return replace(steps, recorded_ms=replay(steps, LINK).step_ms)


work = st.floats(0.1, 30.0)
sizes = st.floats(1e3, 2e7)


@st.composite
def any_steps(draw: st.DrawFn) -> Steps:
    count = draw(st.integers(1, 6))
    blocking = draw(st.integers(0, 2))
    return made_steps(
        [draw(work) for _ in range(count + blocking + 1)],
        [draw(sizes) for _ in range(count + blocking)],
        [True] * blocking + [False] * count,
    )


links = st.builds(Link, st.floats(0.0, 5.0), st.floats(1e3, 1e6), st.integers(1, 2))


@given(any_steps(), links, st.floats(1.0, 20.0))
def test_more_bandwidth_is_never_slower(steps: Steps, link: Link, factor: float) -> None:
    faster = replay(steps, link.faster(factor)).step_ms
    assert (faster <= replay(steps, link).step_ms + 1e-6).all()


@given(any_steps(), links)
def test_a_step_takes_at_least_its_work_and_its_bytes(steps: Steps, link: Link) -> None:
    step = replay(steps, link).step_ms
    bucket_bytes = steps.nbytes[~steps.blocks].sum()
    assert (step >= steps.own_ms.sum(axis=2).max(axis=1) - 1e-6).all()
    assert (step >= bucket_bytes / link.bytes_per_ms - 1e-6).all()


@given(any_steps(), links)
def test_without_calls_that_block_it_is_not_slower(steps: Steps, link: Link) -> None:
    less = steps.without(steps.blocks)
    assert less.own_ms.sum() == pytest.approx(steps.own_ms.sum())
    assert (replay(less, link).step_ms <= replay(steps, link).step_ms + 1e-6).all()


@given(any_steps(), links)
def test_the_same_buckets_give_the_same_step(steps: Steps, link: Link) -> None:
    same = steps.rebucketed(steps.nbytes[~steps.blocks])
    assert replay(same, link).step_ms == pytest.approx(replay(steps, link).step_ms)


@given(any_steps(), links)
def test_half_the_bytes_are_never_slower(steps: Steps, link: Link) -> None:
    assert (replay(steps.scaled(0.5), link).step_ms <= replay(steps, link).step_ms + 1e-6).all()


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6),
    st.lists(sizes, min_size=6, max_size=6),
    links,
)
def test_messages_arrive_after_they_were_ready(
    ready: list[float], nbytes: list[float], link: Link
) -> None:
    begins = np.maximum.accumulate(np.array([ready]), axis=1)
    lengths = np.array(nbytes[: len(ready)])
    done = transfers(begins, lengths, link)
    alone = link.alpha_ms + lengths / link.bytes_per_ms
    assert (done >= begins + alone - 1e-6).all()
    # the link is never idle while a message waits, but for latencies
    most = begins.max() + alone.sum()
    assert done.max() <= most + 1e-6


def test_two_messages_together_share_the_bandwidth() -> None:
    done = transfers(np.zeros((1, 2)), np.array([1e6, 1e6]), Link(1.0, 1e5, 2))
    assert done == pytest.approx(np.array([[21.0, 21.0]]))
    one_by_one = transfers(np.zeros((1, 2)), np.array([1e6, 1e6]), Link(1.0, 1e5, 1))
    assert one_by_one == pytest.approx(np.array([[11.0, 22.0]]))


def run_over(link: Link, **changes: object) -> Run:
    """Six buckets of 4 MB in a backward of 60 ms, and a small broadcast in forward."""
    given = {"bucket_bytes": 4_000_000.0, "buckets": 6, "backward_ms": 60.0, "extra_ms": 2.0}
    return over_link(link, **(given | changes))  # type: ignore[arg-type]


def test_unchanged_settings_give_the_recorded_step_back() -> None:
    gains = analyze(run_over(LINK)).gains

    assert gains.reason is None
    assert gains.self_error is not None
    assert gains.self_error < 0.01


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 3.0), st.floats(10_000, 400_000), st.floats(10, 120))
@example(3.0, 363_637.0, 18.0)  # in this backward latencies hide behind other buckets' bytes
def test_the_link_is_found_where_it_is_what_costs(
    alpha_ms: float, rate: float, backward_ms: float
) -> None:
    link = Link(alpha_ms, rate, 2)
    fit = analyze(run_over(link, backward_ms=backward_ms)).link

    assert fit is not None
    assert fit.alpha_ms == pytest.approx(alpha_ms, rel=0.1)
    if 6 * 4_000_000 / rate > 2 * backward_ms:  # else other times than the link's are seen
        assert fit.beta_gb_per_s == pytest.approx(rate / 1e6, rel=0.1)


def test_where_all_messages_are_tiny_the_link_is_latency_alone() -> None:
    """As the buckets of a small model: 4 kB show no rate."""
    fit = analyze(run_over(Link(2.0, 1_000_000.0, 2), bucket_bytes=4_000.0)).link

    assert fit is not None
    assert fit.alpha_ms == pytest.approx(2.0, rel=0.1)
    assert fit.beta_gb_per_s is None
    assert fit.latency_share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fix", "changes"),
    [
        (Fix.FASTER_LINK, {"link": LINK.faster(2)}),
        (Fix.NO_EXTRAS, {"extra_ms": 0.0}),
        (Fix.COMPRESS, {"bucket_bytes": 2_000_000.0}),
    ],
)
def test_a_predicted_gain_is_that_of_the_changed_run(fix: Fix, changes: dict) -> None:
    before = analyze(run_over(LINK))
    after = analyze(run_over(**{"link": LINK, **changes}))

    gain = before.gains.of(fix)

    assert gain is not None
    assert before.step_ms is not None
    assert after.step_ms is not None
    assert gain.step_ms == pytest.approx(before.step_ms, rel=0.02)
    assert gain.after_ms == pytest.approx(after.step_ms, abs=gain.error_ms)


def test_one_large_bucket_is_better_cut() -> None:
    before = analyze(run_over(LINK, buckets=1, bucket_bytes=3e6))
    gain = before.gains.of(Fix.BUCKET_SIZE)

    assert gain is not None
    assert gain.setting == "bucket_cap_mb=1"
    assert gain.is_sure


def test_on_one_host_it_says_why_there_is_no_number() -> None:
    run = simulate(lambda rank, step: StepTimes())
    alone = replace(
        run,
        ranks=tuple(
            replace(trace, info=replace(trace.info, network_id="boot/net:[1]"))
            for trace in run.ranks
        ),
    )

    gains = analyze(alone).gains

    assert not gains.gains
    assert "must be measured" in (gains.reason or "")


def test_a_rank_without_calls_phases_or_steps_promises_nothing() -> None:
    run = run_over(LINK)
    one, other = run.ranks

    for kind in (Kind.COLLECTIVE, Kind.SPAN, Kind.STEP):
        less = replace(other, detail=other.detail[other.detail["kind"] != kind])
        gains = analyze(replace(run, ranks=(one, less))).gains
        assert not any(gain.is_sure for gain in gains.gains)
        assert gains.gains or gains.reason


def test_a_replay_that_misses_the_record_is_not_used() -> None:
    steps = made_steps([1.0, 5.0, 1.0], [1e6, 1e6], [False, False])
    assert Playing.of(steps, LINK).self_error == pytest.approx(0)
    assert Playing.of(steps, LINK.faster(0.5)).self_error > 0.3
