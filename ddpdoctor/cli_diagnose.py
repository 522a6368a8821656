"""The command `diagnose`: a job that hangs, or what one left."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpdoctor.output import (
    CLEAN,
    FINDINGS,
    HELP,
    INTERNAL_ERROR,
    NO_VERDICT,
    finds,
    names_crashes,
    say,
    warn,
)
from ddpdoctor.streams import reader_may_leave
from ddpdoctor.wording import printable

if TYPE_CHECKING:
    from ddpdoctor.diagnose import Diagnosis


@click.command(context_settings=HELP)
@click.argument(
    "left",
    nargs=-1,
    type=click.Path(path_type=Path),
    metavar="[RUN | DUMPS... | LOGS... | ARCHIVES...]",
)
@click.option("--pid", type=int, help="Only the job of this process: a rank, or its launcher.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="Seconds after which looking ends.",
)
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0.3),
    default=1.5,
    show_default=True,
    help="Seconds without progress that count as standing still; more for a job of slow steps.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A log of the job, a folder of them (torchrun --log-dir), or an error file; repeatable.",
)
@click.option(
    "-o",
    "--output",
    "packed_in",
    type=click.Path(path_type=Path, file_okay=False),
    help="Pack the evidence into a file in this folder, which diagnose reads anywhere.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report objects, one a job.")
@click.option("-v", "--verbose", is_flag=True, help="Show the stacks of all ranks, too.")
def diagnose(  # noqa: PLR0913  each is an option of the command line
    left: tuple[Path, ...],
    pid: int | None,
    timeout_s: float,
    watch_s: float,
    logs: tuple[Path, ...],
    packed_in: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Which rank holds up a hung job on this host, what it is doing, and what to do.

    Needs no recording, and leaves the job as it is. Each job of this host is judged.

    Of a job that is gone: name the folder or the files in which torch's flight recorder
    left its DUMPS, a recorded RUN, its LOGS, or ARCHIVES that -o made on its hosts. A --log is
    read beside what else there is.
    """
    from ddpdoctor.diagnose import diagnose_all

    if left and pid is not None:
        raise click.UsageError("name a --pid, or what a job left, not both")
    seen = _diagnose_left(left) if left else None
    diagnoses = diagnose_all(seen, logs, pid, max(timeout_s, watch_s), watch_s)
    if packed_in is not None:
        _pack(packed_in, diagnoses, left, logs)
    if as_json:
        from ddpdoctor.report import to_json

        reports = ",\n".join(to_json(each.report) for each in diagnoses)
        say(reports if len(diagnoses) == 1 else f"[{reports}]")
    else:
        _print_diagnoses(diagnoses, stacks=verbose)
    if any(finds(each.report, "warning") for each in diagnoses):
        return FINDINGS
    if any([names_crashes(each.report) for each in diagnoses]):  # noqa: C419  all are named
        return INTERNAL_ERROR
    return CLEAN if all(each.has_verdict for each in diagnoses) else NO_VERDICT


def _pack(
    folder: Path, diagnoses: list[Diagnosis], left: tuple[Path, ...], logs: tuple[Path, ...]
) -> None:
    from ddpdoctor.diagnose_left import pack
    from ddpdoctor.hang.archive import is_archive

    if any(each.is_of_record for each in diagnoses) or any(map(is_archive, left)):
        raise click.UsageError("-o packs processes, dumps and logs; a RUN or an archive is packed")
    path = pack(folder, socket.gethostname(), diagnoses, left, logs)
    warn(printable(f"evidence packed; anywhere: ddpdoctor diagnose {path}"))


def _diagnose_left(paths: tuple[Path, ...]) -> list[Diagnosis]:
    from ddpdoctor.diagnose import Diagnosis, diagnosis_of_run
    from ddpdoctor.runfolders import is_run, launch_alone

    launch = launch_alone(paths[0]) if len(paths) == 1 else None
    if launch is not None:
        from ddpdoctor.launchreport import launch_verdict

        return [Diagnosis(launch_verdict(launch).report)]
    if len(paths) > 1 or not is_run(paths[0]):
        from ddpdoctor.diagnose_left import diagnose_left

        return diagnose_left(paths)
    from ddpdoctor import analyze, load_run, run_checks
    from ddpdoctor.report import run_report

    analysis = analyze(load_run(paths[0]))
    return [diagnosis_of_run(run_report(analysis, run_checks(analysis)))]


def _print_diagnoses(diagnoses: list[Diagnosis], *, stacks: bool) -> None:
    from ddpdoctor.diagnose_text import render
    from ddpdoctor.terminal import text_console

    console = text_console()
    with reader_may_leave():
        for index, each in enumerate(diagnoses):
            if index:
                console.print()
            render(each, console, stacks=stacks)
