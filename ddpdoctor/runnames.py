"""How a run is called: a name of the user's, or the time at which it began."""

from __future__ import annotations

import datetime
import re
import secrets
import time
from collections.abc import Mapping
from typing import Final

RUN_ID: Final = "DDPDOCTOR_RUN_ID"  # the variable; `ddpdoctor run` sets it where the user did not
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def named_run_id(variables: Mapping[str, str]) -> str | None:
    """The name that the environment gives; None where there is none that can name a folder."""
    named = variables.get(RUN_ID, "")
    return named if _SAFE.fullmatch(named) else None


def new_run_id() -> str:
    return f"{at(time.time())}-{secrets.token_hex(2)}"


def at(seconds: float) -> str:
    """A time of the wall clock as the beginning of a name."""
    return f"{datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC):%Y%m%d-%H%M%S}"
