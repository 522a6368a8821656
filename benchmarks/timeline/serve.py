"""A dashboard of a generated run, in a process of its own; prints its address."""

from __future__ import annotations

import sys

from benchmarks.timeline.generate import generate
from benchmarks.timeline.report import report_of
from ddpdoctor.dashboards import create_app
from ddpdoctor.dashboards.server import Address, serve, start


def main(ranks: int, steps: int) -> None:
    timeline = generate(ranks, steps)
    app = create_app(report_of(timeline), token=None, timeline=timeline)
    server = start(app, "127.0.0.1", 0)
    print(Address("127.0.0.1", server.port, None).url, flush=True)
    serve(server)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
