"""The overhead benchmark runs and keeps its form. What it measures is asserted nowhere."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path

import pytest

from tests.launching import ROOT, environment, finish

pytestmark = [pytest.mark.job, pytest.mark.long]


def test_a_quick_run_compares_each_variant_with_bare_ddp(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.overhead", "--quick", "--json"]

    done = finish(command, tmp_path, environment(PYTHONPATH=str(ROOT)))

    assert done.status == 0, done.err
    (figures,) = json.loads(done.out).values()
    assert figures["step_ms"] > 0
    for variant in ("ddpdoctor", "ddpdoctor_off", "comm_hook", "profiler"):
        for spread in ("ratio_iqr", "ratio_95"):
            low, high = figures[variant][spread]
            assert 0 < low <= figures[variant]["ratio"] <= high
            assert isfinite(high)
        assert isfinite(figures[variant]["us_per_step"])
    for variant in ("ddpdoctor", "ddpdoctor_off"):
        assert isfinite(figures[variant]["cpu_us_per_step"])
    assert figures["ddpdoctor"]["bytes_per_step"] > 0
