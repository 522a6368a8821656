"""Two hosts that are far apart and whose clocks differ: the common clock is within its bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.checks import find_check, run_check
from tests.hosts import far_apart, needs_root, needs_time_namespaces, needs_tun, train

pytestmark = [pytest.mark.job, needs_root, needs_tun, needs_time_namespaces]

DELAY_MS = 2.0
SHIFT_S = 5000  # so far rank 1's monotonic clock is ahead: both run on one kernel's clock
LATE_MS = 40.0
AHEAD = ("unshare", "--time", "--monotonic", str(SHIFT_S), "--fork", "--kill-child")


@pytest.mark.long
def test_the_common_clock_is_within_the_bound_that_it_states(tmp_path: Path) -> None:
    with far_apart(DELAY_MS) as hosts:
        train(
            hosts, tmp_path, "--wrap", "--fault", "forward", "--late-ms", str(LATE_MS),
            "--steps", "250", "--width", "64", inside=[(), AHEAD],
        )  # fmt: skip
    (folder,) = (tmp_path / "ddpdoctor_runs").iterdir()
    run = load_run(folder)

    measured = run.ranks[1].clocks
    analysis = analyze(run)

    assert len(measured) == 2, "one when recording began, one at the end"
    for each in measured:
        assert abs(each.offset_ns + SHIFT_S * 10**9) <= each.error_ns
        assert each.error_ns <= 2 * DELAY_MS * 1e6
    clock = analysis.tables.clock.ranks[1]
    times = run.ranks[1].detail["begin_ns"].astype(np.int64)
    off = np.abs(clock.to_common(times) - (times - SHIFT_S * 10**9))
    assert (off <= clock.error_ns(times)).all()
    assert analysis.tables.clock.error_ns <= 2 * DELAY_MS * 1e6
    (finding,) = run_check(find_check("DD101"), analysis).findings
    assert finding.culprits == (1,)
    assert analysis.ranks[0].times.wait_ms == pytest.approx(LATE_MS, abs=LATE_MS / 4)
