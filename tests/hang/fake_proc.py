"""A small tree of files like /proc."""

from __future__ import annotations

import json
import os
from pathlib import Path


class FakeProc:
    """Writes processes below a folder; `root` is handed to what reads /proc."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "proc"
        self.root.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def add(
        self,
        pid: int,
        parent: int = 1,
        *,
        env: dict[str, str] | None = None,
        torch: bool = True,
        state: str = "S",
        command: tuple[str, ...] = ("python", "train.py"),
        start: int | None = None,
        exit_code: int = 0,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        zeros = ["0"] * 50
        zeros[0], zeros[1] = state, str(parent)
        zeros[11], zeros[12] = "150", "50"  # user and system ticks
        zeros[19] = str(start if start is not None else 1000 + pid)
        zeros[49] = str(exit_code)
        (folder / "stat").write_text(f"{pid} (py (odd) name) {' '.join(zeros)}\n")
        if state == "Z":
            return
        settings = {"TMPDIR": str(self.temporary)} | (env or {})
        (folder / "environ").write_text("\0".join(f"{k}={v}" for k, v in settings.items()) + "\0")
        (folder / "cmdline").write_text("\0".join(command) + "\0")
        (folder / "maps").write_text(
            "7f r-xp /x/torch/lib/libtorch_cpu.so\n" if torch else "7f /bin\n"
        )
        (folder / "wchan").write_text("futex_do_wait")
        (folder / "io").write_text("rchar: 100\nwchar: 23\nsyscr: 1\n")
        task = folder / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "schedstat").write_text("500000000 1 2\n")
        (task / "status").write_text("Name:\tpython\nvoluntary_ctxt_switches:\t41\n")

    def rank(self, pid: int, rank: int, world: int = 2, parent: int = 10, **facts) -> None:
        """A rank as torchrun starts it; `port` and `run_id` tell jobs apart."""
        port, run_id = facts.pop("port", 29500), facts.pop("run_id", "job-a")
        local = facts.pop("local_world", world)
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % local),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(local),
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": run_id,
            "SECRET_TOKEN": "hunter2",
        }
        self.add(pid, parent, env=env, **facts)

    def register(
        self, pid: int, rank: int, start: int, world: int = 2, run: str = "/runs/a/1"
    ) -> None:
        folder = self.temporary / f"ddpdoctor-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = {
            "pid": pid, "start_time_ticks": start, "rank": rank, "world_size": world,
            "run_folder": run,
        }  # fmt: skip
        (folder / f"{pid}.json").write_text(json.dumps(facts))
