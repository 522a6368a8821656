"""The numbers behind the pages, and what a page says where its data is missing."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from dash import html

from ddpdoctor.analysis import analyze
from ddpdoctor.analysis.buckets import bucket_stats
from ddpdoctor.analysis.feeds import batch_sizes, loader_feeds, shared_draws
from ddpdoctor.analysis.grid import build_grid, input_map
from ddpdoctor.analysis.seenlines import seen_lines
from ddpdoctor.analysis.standings import host_standings, phase_excesses, rank_standings
from ddpdoctor.analysis.timeline import build_timeline
from ddpdoctor.analysis.windowed import bucket_kinds, next_of_kinds, window_table
from ddpdoctor.dashboards.app import CHARTS, PAGES
from ddpdoctor.dashboards.offline import ASSETS, Stretch, TooMuch, bundle, markup, page_of
from ddpdoctor.dashboards.shown import Shown
from ddpdoctor.events import Phase, Site, Stall
from ddpdoctor.laststacks import LastStacks
from ddpdoctor.modelevents import BatchRun, ModelFacts
from ddpdoctor.sheets import last_sheets
from ddpdoctor.tracefile import RankTrace
from tests.builders import (
    StepTimes,
    drawn,
    make_run,
    simulate,
    with_loader,
    with_ranks,
    with_samples,
)  # fmt: skip
from tests.dashboards.shown import LATE_MS, LATE_RANK, late_analysis, late_report, report_on

HOSTS = ("node0", "node0", "node1", "node1")


@pytest.fixture(scope="module")
def late() -> Shown:
    return Shown(late_report())


def page(shown: Shown, name: str) -> str:
    return markup(PAGES[name](shown, lambda path: path))


def test_a_bucket_names_who_arrives_last_and_by_how_much() -> None:
    first, second = bucket_stats(late_analysis())
    assert (first.bucket, second.bucket) == (0, 1)
    assert {first.last_rank, second.last_rank} == {LATE_RANK}
    assert second.last_share == 1.0
    assert second.spread_ms == pytest.approx(LATE_MS, abs=0.1)
    assert second.wait_ms == pytest.approx(LATE_MS * 3 / 4, abs=0.1)
    assert second.transfer_ms == pytest.approx(0.5, abs=0.01)
    assert second.gb_per_s == pytest.approx(4e6 / 0.5e-3 / 1e9, rel=0.02)


def test_a_bucket_that_moves_behind_compute_is_not_exposed() -> None:
    """The first is done while backward computes; the second begins when it has ended."""
    run = simulate(lambda rank, step: StepTimes(), 2, 40, transfer_ms=(2.0, 2.0))
    first, second = bucket_stats(analyze(run))
    assert first.exposed_ms == pytest.approx(0.0, abs=0.01)
    assert second.exposed_ms == pytest.approx(2.0, abs=0.01)


def test_hosts_are_means_of_their_ranks_with_the_slowest_named() -> None:
    run = simulate(lambda rank, step: StepTimes(forward=5.0 + 10 * (rank == 3)), 4, 30, hosts=HOSTS)
    standings = rank_standings(analyze(run))
    assert standings[3].over_ms == pytest.approx(10.0, abs=0.1)
    assert standings[0].over_ms == pytest.approx(0.0, abs=0.1)
    fast, slow = host_standings(standings)
    assert (fast.host, fast.ranks) == ("node0", (0, 1))
    assert slow.slowest == 3
    assert slow.own_ms == pytest.approx(fast.own_ms + 5.0, abs=0.1)


def test_the_excess_of_a_rank_is_in_its_phase() -> None:
    found = phase_excesses(late_analysis())
    at = found.phases.index(Phase.BACKWARD)
    assert found.excess_ms[LATE_RANK, at] == pytest.approx(LATE_MS, abs=0.1)
    assert np.abs(np.delete(found.excess_ms, LATE_RANK, axis=0)).max() < 0.1


def test_loaders_draws_and_batches() -> None:
    run = with_loader(simulate(lambda rank, step: StepTimes(), 2, 20))
    sizes = ModelFacts(batches={0: [BatchRun(0, 10, 8, 80, 1), BatchRun(10, 10, 4, 40, 1)]})
    run = with_ranks(
        run, lambda trace: replace(trace, drawn=(drawn(range(100)),), model=sizes)
    )  # fmt: skip
    analysis = analyze(run)
    assert [(feed.rank, feed.info.dataset) for feed in loader_feeds(analysis)] == [
        (0, "Images"), (1, "Images"),
    ]  # fmt: skip
    (shared,) = shared_draws(analysis)
    assert shared.share > 0.9
    assert [(each.rank, each.samples, each.least) for each in batch_sizes(analysis)] == [
        (0, 6.0, 4), (1, 6.0, 4),
    ]  # fmt: skip


def test_lines_are_counted_over_the_ranks() -> None:
    run = with_samples(simulate(lambda rank, step: StepTimes(), 2, 20), 1, Phase.FORWARD, 30)
    (line,) = seen_lines(analyze(with_samples(run, 0, Phase.FORWARD, 10)))
    assert line.samples == 40
    assert line.by_rank == {0: 10, 1: 30}
    assert line.share == 1.0


def test_stacks_are_apart_by_the_moment_they_were_taken_at() -> None:
    site = Site("/home/user/train.py", 7, "main")

    def ends(trace: RankTrace) -> RankTrace:
        stacks = LastStacks(at_sigterm=(site,), at_sighup=(site,) if trace.info.rank else None)
        return replace(trace, stall=Stall(Phase.BLOCKED, site, 5.0), last_stacks=stacks)

    run = with_ranks(simulate(lambda rank, step: StepTimes(), 2, 20), ends)
    counts = {moment: len(sheet.rows) for moment, sheet in last_sheets(analyze(run))}
    assert counts == {"stood still": 2, "at SIGTERM": 2, "at SIGHUP": 1}
    shown = page(Shown(report_on(run)), "stacks")
    assert shown.count("Where ranks stood at the end") == 2 * len(counts)  # heading, table's name
    assert 'href="#standing-at-sighup"' in shown
    assert 'id="standing-at-sighup"' in shown


def test_the_rank_that_a_finding_blames_is_marked(late: Shown) -> None:
    assert late.culprits == {LATE_RANK}
    assert page(late, "ranks").count('class="culprit"') == 1
    healthy = Shown(report_on(simulate(lambda rank, step: StepTimes(), 4, 40)))
    assert 'class="culprit"' not in page(healthy, "ranks")


def test_the_window_in_numbers_adds_up() -> None:
    timeline = build_timeline(late_analysis())
    table = window_table(timeline, 100.0, 300.0, timeline.rows)
    assert [sum(row.ms) for row in table.rows] == pytest.approx([200.0] * 4, abs=3.0)
    late = table.rows[LATE_RANK]
    assert late.excess_ms == pytest.approx(LATE_MS, abs=0.1)
    assert table.steps is not None
    assert table.steps[0] <= late.worst_sync <= table.steps[1]


def test_the_next_call_of_a_bucket() -> None:
    timeline = build_timeline(late_analysis())
    kinds = timeline.calls.kinds
    call = next_of_kinds(timeline, bucket_kinds(kinds, 1), 0, 500.0)
    assert call is not None
    assert timeline.calls.rank[call] == 0
    assert timeline.calls.bucket[call] == 1
    assert timeline.calls.begin_ms[call] >= 500.0
    assert bucket_kinds(kinds, 1, group=0, nbytes=4_000_000).size
    for none in (bucket_kinds(kinds, 99), bucket_kinds(kinds, 1, nbytes=3)):
        assert next_of_kinds(timeline, none, 0, 0.0) is None
    assert next_of_kinds(timeline, bucket_kinds(kinds, 0), 99, 0.0) is None


def test_the_input_map_keeps_the_longest_wait() -> None:
    run = simulate(lambda rank, step: StepTimes(input=70.0 * (step == 17) + 1.0), 2, 40)
    cells = input_map(build_grid(analyze(run), 0), 5)
    assert cells.input_ms.shape == (2, 5)
    assert cells.input_ms.max() == pytest.approx(71.0, abs=0.1)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_of_a_run(late: Shown, name: str) -> None:
    assert "<h1" in page(late, name)


def test_pages_say_what_to_record(late: Shown) -> None:
    assert "Buckets are told apart where" in page(_of_one_rank(), "buckets")
    assert "No loader was seen" in page(late, "data-loading")
    assert "No line was sampled" in page(late, "stacks")
    assert "nothing to compare" in page(_without_steps(), "ranks")


def _of_one_rank() -> Shown:
    return Shown(report_on(simulate(lambda rank, step: StepTimes(), 1, 10, transfer_ms=())))


def _without_steps() -> Shown:
    run = simulate(lambda rank, step: StepTimes(), 2, 3)
    return Shown(report_on(make_run([replace(t, detail=t.detail[:0]) for t in run.ranks])))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_of_a_run_without_a_step(name: str) -> None:
    assert "<h1" in page(_without_steps(), name)


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_drawn_in_both_themes(late: Shown, name: str, theme: str) -> None:
    assert CHARTS[name](late, theme).data


def test_checks_page_has_every_check_and_the_reason_of_those_skipped(late: Shown) -> None:
    shown = page(late, "checks")
    for result in late.report.results:
        assert result.code in shown
        if result.reason:
            assert result.reason.replace("'", "&#x27;") in shown


def test_names_from_traces_are_escaped_in_files() -> None:
    shown = markup(html.P("<img src=x>", title='"><b>'))
    assert shown == '<p title="&quot;&gt;&lt;b&gt;">&lt;img src=x&gt;</p>'


def test_the_scripts_of_a_file_import_nothing() -> None:
    scripts = bundle()
    assert not re.search(r"^(import|export) ", scripts, re.MULTILINE)
    modules = [path.stem for path in (ASSETS / "timeline").glob("*.js")]
    assert sorted(re.findall(r"^const module_(\w+) = ", scripts, re.MULTILINE)) == sorted(modules)


def test_a_file_holds_the_stretch_and_asks_for_nothing(late: Shown) -> None:
    rows = late.timeline.rows
    text = page_of(late, Stretch(100.0, 200.0, rows, "?t0=100.000&t1=200.000"))
    assert "http" not in text.replace("http-equiv", "")
    assert '"t0=100.000&t1=200.000"' in text
    assert 'src="' not in text


def test_too_much_for_one_file_is_a_sentence(late: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.dashboards.offline.MOST_SPANS", 10)
    with pytest.raises(TooMuch, match="too many for one page"):
        page_of(late, Stretch(0.0, 500.0, late.timeline.rows))
