"""Options of the whole suite."""

from __future__ import annotations

import os

import pytest

# Before torch is imported: on two CPUs the threads of two test processes would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-expected",
        action="store_true",
        help="rewrite sample_traces/*/expected.txt from what the report says now",
    )


@pytest.fixture
def update_expected(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-expected"))
