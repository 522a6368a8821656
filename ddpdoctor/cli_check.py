"""`ddpdoctor check`: the command line of the checkup before training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpdoctor.errors import BadLaunch
from ddpdoctor.output import (
    HELP,
    NO_VERDICT,
    complain,
    fail_on_option,
    json_option,
    say,
    status_of,
)
from ddpdoctor.streams import reader_may_leave

if TYPE_CHECKING:
    from ddpdoctor.launchfacts import LaunchFacts
    from ddpdoctor.report import Report


@click.command(context_settings=HELP)
@click.option("--nnodes", type=click.IntRange(1), help="Meet one process a node; on each of them.")
@click.option("--node-rank", type=click.IntRange(0), help="With --nnodes: the number of this node.")
@click.option("--rdzv-endpoint", help="With --nnodes: HOST:PORT of node 0.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 600),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the others.",
)
@click.option(
    "--script", type=click.Path(path_type=Path), help="Compare this program, too, over the ranks."
)
@click.option(
    "--network",
    is_flag=True,
    help="Measure the network between the ranks, too (some 10 s), and keep it beside the runs.",
)
@click.option(
    "--failing-nodes",
    type=click.Path(path_type=Path),
    default="failing_nodes.txt",
    show_default=True,
    help="Where hosts that are at fault are written, if any are.",
)
@json_option
@fail_on_option
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an internal error.")
def check(  # noqa: PLR0913  each is an option of the command line
    nnodes: int | None,
    node_rank: int | None,
    rdzv_endpoint: str | None,
    timeout_s: float,
    script: Path | None,
    network: bool,
    failing_nodes: Path,
    as_json: bool,
    fail_on: str,
    verbose: bool,
) -> int:
    """Look at the launch before training: ranks, devices, limits, versions, network.

    Alone it looks at this node. Under the launcher of the job its ranks meet where those of the
    training will, and tell who is missing or differs:

        torchrun --nproc-per-node 4 -m ddpdoctor check

    With --network it also measures all-reduces of many sizes and each two hosts, for the report on
    later runs:

        torchrun --nproc-per-node 4 -m ddpdoctor check --network

    Where torchrun itself waits for a node, let one process a node meet:

        ddpdoctor check --nnodes 2 --node-rank 0 --rdzv-endpoint HOST:29500
    """
    del verbose  # read by cli.main from the command line
    from ddpdoctor.checkup import check_launch, node_launch
    from ddpdoctor.preflight.launcher import launch_of

    by_node = not (nnodes is None and node_rank is None and rdzv_endpoint is None)
    given = node_launch(nnodes, node_rank, rdzv_endpoint) if by_node else launch_of(os.environ)
    if network and not given.meets:
        raise BadLaunch("--network measures between ranks: start it by torchrun, or by --nnodes")
    checkup = check_launch(given, timeout_s, script, network=network)
    if checkup.report is None or checkup.facts is None:  # another rank has said it
        return NO_VERDICT if checkup.status is None else checkup.status
    if as_json:
        from ddpdoctor.report import to_json

        say(to_json(checkup.report))
    else:
        _print_launch(checkup.report, checkup.facts)
    _write_failing_nodes(checkup.report, failing_nodes)
    _keep_network(checkup.facts)
    status = status_of(checkup.report, fail_on)
    checkup.tell_others(status)
    return status


def _print_launch(made: Report, facts: LaunchFacts) -> None:
    from ddpdoctor.launch_text import render
    from ddpdoctor.terminal import text_console

    with reader_may_leave():
        render(made, facts, text_console())


def _keep_network(facts: LaunchFacts) -> None:
    """Beside the runs, where the report on them looks for it."""
    from ddpdoctor.baseline import write_baseline
    from ddpdoctor.runfolders import runs_folder

    if facts.network is None or not facts.network.sizes:
        return
    try:
        complain(f"the network is kept in {write_baseline(facts.network, runs_folder())}")
    except OSError as error:
        complain(f"the network is not kept: {error.strerror}")


def _write_failing_nodes(made: Report, path: Path) -> None:
    from ddpdoctor.checkup import write_failing_nodes

    try:
        hosts = write_failing_nodes(made, path)
    except OSError as error:
        complain(f"{path}: cannot be written ({error.strerror})")
        return
    if hosts:
        complain(f"{len(hosts)} failing node{'s' * (len(hosts) != 1)}, listed in {path}")
