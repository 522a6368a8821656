"""The command `export`: a run for other tools, and for people without this one."""

from __future__ import annotations

from pathlib import Path

import click

from ddpdoctor.output import HELP, say
from ddpdoctor.wording import printable

ENDINGS = {"trace": ".trace.json.gz", "csv": "-tables", "html": ".html"}


@click.command(context_settings=HELP)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "wanted",
    type=click.Choice(sorted(ENDINGS)),
    default="trace",
    show_default=True,
    help="trace: for Perfetto or chrome://tracing; csv: the tables; html: the timeline, offline.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Where to write; by default here."
)
def export(run: Path | None, wanted: str, output: Path | None) -> None:
    """Export a recorded RUN; by default the newest one here.

    A trace opens in https://ui.perfetto.dev or chrome://tracing, which read it on your machine.
    """
    from ddpdoctor import analyze, load_run, run_checks
    from ddpdoctor.analysis.timeline import build_timeline
    from ddpdoctor.export import write_tables, write_trace
    from ddpdoctor.report import run_report

    analysis = analyze(load_run(run))
    path = output or Path(analysis.run.info.run_id + ENDINGS[wanted])
    if wanted == "trace":
        write_trace(build_timeline(analysis), path)
    elif wanted == "csv":
        for written in write_tables(analysis, path):
            say(printable(str(written)))
        return
    else:
        from ddpdoctor.dashboards.offline import write_page

        write_page(run_report(analysis, run_checks(analysis)), path)
    say(printable(str(path)))
