"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-expected",
        action="store_true",
        help="rewrite sample_traces/*/expected.txt from what the report says now",
    )


@pytest.fixture
def update_expected(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-expected"))
