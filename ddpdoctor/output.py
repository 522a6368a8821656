"""What all commands share: how they print, their exit statuses and common options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from ddpdoctor.streams import reader_may_leave
from ddpdoctor.wording import printable

if TYPE_CHECKING:
    from ddpdoctor.report import Report

CLEAN: Final = 0
FINDINGS: Final = 1
NO_VERDICT: Final = 2
INTERNAL_ERROR: Final = 3

HELP = {"help_option_names": ["-h", "--help"]}
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the report object (schema_version 1)."
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["info", "warning", "error", "never"]),
    default="warning",
    show_default=True,
    help="Least severity for which the exit status is 1.",
)


def say(text: str) -> None:
    with reader_may_leave():
        click.echo(text)


def warn(text: str) -> None:
    with reader_may_leave():
        click.echo(text, err=True)


def complain(sentence: str) -> None:
    warn(f"ddpdoctor: {printable(sentence)}")


def printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.replace("\t", "    ").split("\n"))


def status_of(made: Report, fail_on: str) -> int:
    from ddpdoctor.report import why_no_verdict

    if finds(made, fail_on):
        return FINDINGS
    if names_crashes(made):
        return INTERNAL_ERROR
    reason = why_no_verdict(made)
    if reason is not None:
        complain(f"no verdict on this {made.subject}: {reason}")
    return CLEAN if reason is None else NO_VERDICT


def finds(made: Report, fail_on: str) -> bool:
    from ddpdoctor.findings import Severity
    from ddpdoctor.report import exceeds

    return exceeds(made, None if fail_on == "never" else Severity[fail_on.upper()])


def names_crashes(made: Report) -> bool:
    """Whether a check crashed: what it would have found is not known."""
    from ddpdoctor.report import crashed

    for result in crashed(made):
        complain(f"check {result.code} {result.name} crashed, please report it: {result.reason}")
    return bool(crashed(made))
