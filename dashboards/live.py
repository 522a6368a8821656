"""Follows a run that is still written, beside the server, until it ends."""

from __future__ import annotations

import threading
import time

from ddpdoctor.dashboards.shown import Current
from ddpdoctor.following import Course, Follower

EVERY_S = 1.0
REST = 2.0  # times as long as reading took: the machine may be that of the training


def start_following(current: Current, follower: Follower) -> None:
    """Returns at once; nothing is started for a run that has ended."""
    current.course = follower.course
    if follower.course is not Course.ENDED:
        threading.Thread(target=_follow, args=(current, follower), daemon=True).start()


def _follow(current: Current, follower: Follower) -> None:
    while follower.course is not Course.ENDED:
        began = time.monotonic()
        report = follower.look()
        if report is not None:
            current.show(report)
        current.course, current.still_s = follower.course, follower.still_s
        time.sleep(max(EVERY_S, REST * (time.monotonic() - began)))
