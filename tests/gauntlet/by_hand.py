"""Starts one process a rank and waits for them, as a scheduler does that looks after none.

`python by_hand.py SCRIPT VARIABLES`: the second is a JSON list of variables, one object a rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def main() -> None:
    script, variables = sys.argv[1], json.loads(sys.argv[2])
    ranks = [subprocess.Popen([sys.executable, script], env=os.environ | v) for v in variables]
    for rank in reversed(ranks):  # the last one first: those that end before stay as they are
        rank.wait()


if __name__ == "__main__":
    main()
