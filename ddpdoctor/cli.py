"""Commands and exit statuses; the only place that prints.

0 looked and found nothing at or above `--fail-on`, 1 findings, 2 usage error or no verdict
possible, 3 internal error, a check that crashed included where no finding decides. `run` passes the
program's own status on. A reader that leaves early, as `head` does, changes no status.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ddpdoctor import __version__
from ddpdoctor.cli_check import check as check_launch
from ddpdoctor.cli_diagnose import diagnose as diagnose_job
from ddpdoctor.cli_export import export as export_run
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.output import CLEAN, INTERNAL_ERROR, NO_VERDICT
from ddpdoctor.output import HELP as _HELP
from ddpdoctor.output import complain as _complain
from ddpdoctor.output import fail_on_option as _fail_on_option
from ddpdoctor.output import json_option as _json_option
from ddpdoctor.output import printable_lines as _printable_lines
from ddpdoctor.output import say as _print
from ddpdoctor.output import status_of as _status
from ddpdoctor.output import warn as _warn
from ddpdoctor.streams import accept_any_text, reader_may_leave
from ddpdoctor.wording import printable

if TYPE_CHECKING:
    from dash import Dash

    from ddpdoctor.dashboards.runs import RunsApp
    from ddpdoctor.launch import Launched
    from ddpdoctor.report import Report


def main() -> None:
    """Entry point of `ddpdoctor`: errors become one sentence and an exit status."""
    accept_any_text()
    try:
        status = cli.main(standalone_mode=False)
    except DdpDoctorError as error:
        _fail(str(error), NO_VERDICT)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as error:
        _show(error)
        sys.exit(NO_VERDICT)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except SystemExit:  # click does so where nobody reads the help on
        sys.exit(CLEAN)
    except Exception as error:  # noqa: BLE001  a bug of ours: one line, the traceback with -v
        if "-v" in sys.argv or "--verbose" in sys.argv:
            _warn(_printable_lines(traceback.format_exc()))
        _fail(
            f"internal error, please report it: {type(error).__name__}: {error} (-v shows where)",
            INTERNAL_ERROR,
        )
    sys.exit(status if isinstance(status, int) else CLEAN)


def _fail(sentence: str, status: int) -> NoReturn:
    _complain(sentence)
    sys.exit(status)


def _show(error: click.ClickException) -> None:
    """As click shows it, whatever the arguments were."""
    shown = io.StringIO()
    error.show(shown)
    _warn(_printable_lines(shown.getvalue().rstrip()))


@click.group(context_settings=_HELP)
@click.version_option(__version__, prog_name="ddpdoctor")
def cli() -> None:
    """Why a PyTorch DDP run is slow, hangs or learns the wrong thing.

    Record a run: put `model = ddpdoctor.wrap(model)` where DistributedDataParallel(model)
    stood, or start the unchanged script by `ddpdoctor run`. Then read `ddpdoctor report`.
    """


@cli.command(
    context_settings={**_HELP, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("torchrun_arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def run(torchrun_arguments: tuple[str, ...]) -> int:
    """Run a script under torchrun and record it, without changing it.

    Takes torchrun's own arguments, then the script and its arguments:

        ddpdoctor run --nproc-per-node 4 train.py --lr 0.1

    A script that starts its ranks itself is run by `ddpdoctor run python train.py`. The exit
    status is torchrun's.
    """
    from ddpdoctor.launch import run_recorded

    launched = run_recorded(torchrun_arguments)
    if not launched.recorded:
        _tell_of_launch(launched)
    return launched.status


def _tell_of_launch(launched: Launched) -> None:
    """What kept the ranks of a launch from recording, as far as they noted it."""
    from ddpdoctor.cli_launch import print_verdict
    from ddpdoctor.launchrecord import has_notes

    if launched.status != CLEAN:
        click.echo("ddpdoctor: the script failed before any rank recorded a model", err=True)
    elif not has_notes(launched.run):
        _complain(
            "no rank recorded anything: no DistributedDataParallel model was made, or "
            "Python was started by -E or -I, which bypasses the import hook"
        )
    else:
        _complain("no rank recorded anything: no DistributedDataParallel model was made")
    if has_notes(launched.run) and not launched.interrupted:
        print_verdict(launched.run)


@cli.command(context_settings=_HELP)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@_json_option
@click.option("--short", is_flag=True, help="Where a step goes and the finding to read first.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write it as one HTML file."
)
@_fail_on_option
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an internal error.")
def report(  # noqa: PLR0913  each is an option of the command line
    run: Path | None, as_json: bool, short: bool, html: Path | None, fail_on: str, verbose: bool
) -> int:
    """Report on a recorded RUN, or on a launch that failed; by default the newest one here."""
    del verbose  # read by main() from the command line, since it matters before parsing, too
    from ddpdoctor.runfolders import launch_alone

    launch = launch_alone(run)
    if launch is not None:
        from ddpdoctor.cli_launch import report_launch

        return report_launch(launch, as_json=as_json, short=short, fail_on=fail_on)
    from ddpdoctor import analyze, load_run, run_checks
    from ddpdoctor.report import run_report, to_json

    analysis = analyze(load_run(run))
    made = run_report(analysis, run_checks(analysis))
    if as_json:
        _print(to_json(made))
    else:
        _print_text(made, short=short)
    if html is not None:
        _write_html(made, html)
    return _status(made, fail_on)


def _write_html(made: Report, path: Path) -> None:
    from ddpdoctor.report_html import to_html

    try:
        path.write_text(to_html(made), encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or "cannot be written") from error


def _print_text(made: Report, *, short: bool) -> None:
    from ddpdoctor.report_text import render
    from ddpdoctor.terminal import text_console

    with reader_may_leave():
        render(made, text_console(), short=short)


cli.add_command(check_launch)
cli.add_command(diagnose_job)
cli.add_command(export_run)


@cli.command(context_settings=_HELP)
@click.argument("check", required=False)
@click.option("--markdown", is_flag=True, help="The table of all checks, as in the README.")
def explain(check: str | None, markdown: bool) -> None:
    """Explain a CHECK by its code or name; without one, list all of them."""
    from ddpdoctor.checks import all_checks, find_check

    if check is not None:
        _print(find_check(check).explanation)
        return
    rows = [(known.code, known.name, known.problem) for known in all_checks()]
    if markdown:
        lines = ["| code | name | the problem |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    else:
        lines = [f"{code}  {name:22} {problem}" for code, name, problem in rows]
    _print("\n".join(lines))


@cli.command(context_settings=_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def runs(as_json: bool) -> None:
    """List the recorded runs here, oldest first."""
    from ddpdoctor.runfolders import list_runs, runs_folder
    from ddpdoctor.runlist import as_table, summary, to_json
    from ddpdoctor.terminal import text_console

    found = [summary(path) for path in list_runs()]
    if as_json:
        _print(to_json(found))
    elif found:
        with reader_may_leave():
            text_console().print(as_table(found))
    else:
        _warn(printable(f"no recorded run in {runs_folder().absolute()}"))


@cli.command(context_settings=_HELP)
@click.argument("state", type=click.Choice(["on", "off"]))
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), help="Only so many steps, then back again.")
@click.option(
    "--detail-every",
    type=click.IntRange(1, 1_000_000),
    help="Keep each so many-th step in detail; by default as the run was begun.",
)
def record(state: str, run: Path | None, steps: int | None, detail_every: int | None) -> int:
    """Switch the recording of a RUN on or off while it runs; by default the newest one here.

    All ranks switch with the same step, a few seconds from now.
    """
    from ddpdoctor.switching import switch_recording

    told = switch_recording(run, on=state == "on", steps=steps, detail_every=detail_every)
    _print(printable(told.sentence))
    if told.silent:
        _complain(told.complaint)
    return NO_VERDICT if told.silent else CLEAN


@cli.command(context_settings=_HELP)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--sample", help="A run that comes with ddpdoctor, in place of RUN.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0: any."
)
@click.option("--allow-host", multiple=True, help="A further host name to trust, as of a proxy.")
@click.option("--prefix", default="/", help="Path under which a proxy shows it, as /user/x/8050/.")
@click.option("--no-token", is_flag=True, help="Let in everyone on this machine (127.0.0.1 only).")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def dashboard(  # noqa: PLR0913  each is an option of the command line
    run: Path | None,
    sample: str | None,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    prefix: str,
    no_token: bool,
    no_browser: bool,
) -> None:
    """Show a recorded RUN in the browser; by default the newest one here.

    Of a folder of runs, a list to choose from. A run that still trains, or hangs, is followed.
    """
    from ddpdoctor.dashboards import create_app, server
    from ddpdoctor.dashboards.runs import RunsApp
    from ddpdoctor.following import first_report
    from ddpdoctor.runfolders import is_run, list_runs
    from ddpdoctor.samples import sample_folder

    if sample and run:
        raise click.UsageError("name a RUN or a --sample, not both")
    token = server.new_token(host, not no_token)
    hosts = (*server.hosts_of(host), *allow_host)
    app: Dash | RunsApp
    if run is not None and not is_run(run) and list_runs(run):
        name = str(run)
        app = RunsApp(run, token, hosts, prefix)
    else:
        report = first_report(sample_folder(sample) if sample else run)
        name = report.name
        app = create_app(report, token=token, allowed_hosts=hosts, prefix=prefix, follow=True)
    serving = server.start(app, host, port)
    address = server.Address(host, serving.port, token)
    _print(
        f"Dashboard of {printable(name)}: {address.url}\n"
        f"From another machine: {address.tunnel}   then open the address above there\n"
        "Ctrl-C ends it."
    )
    if not no_browser and _has_screen():
        click.launch(address.url)
    server.serve(serving)


def _has_screen() -> bool:
    """Elsewhere a text browser would take the terminal over."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and "SSH_CONNECTION" not in os.environ
