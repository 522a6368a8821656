"""`ddpdoctor run` and `report` on a launch that left notes and no record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.output import NO_VERDICT, complain, say, status_of
from ddpdoctor.streams import reader_may_leave

if TYPE_CHECKING:
    from ddpdoctor.launchreport import LaunchVerdict


def report_launch(run: Path, *, as_json: bool, short: bool, fail_on: str) -> int:
    """Print the report on a launch, and return the exit status."""
    from ddpdoctor.launchreport import launch_verdict

    verdict = launch_verdict(run)
    if as_json:
        from ddpdoctor.report import to_json

        say(to_json(verdict.report))
    else:
        _print(verdict, short=short)
    if verdict.why_none is not None:
        complain(f"no verdict on this launch: {verdict.why_none}")
        return NO_VERDICT
    return status_of(verdict.report, fail_on)


def print_verdict(run: Path) -> None:
    """On standard error, where the output of the job ends; nothing where all is well."""
    from ddpdoctor.launchreport import launch_verdict

    verdict = launch_verdict(run)
    if verdict.report.primary is not None:
        _print(verdict, short=True, on_error=True)


def _print(verdict: LaunchVerdict, *, short: bool, on_error: bool = False) -> None:
    from ddpdoctor.launch_text import render_noted
    from ddpdoctor.terminal import text_console

    console = text_console(stderr=on_error)
    with reader_may_leave():
        render_noted(verdict.report, verdict.meetings, console, short=short)
