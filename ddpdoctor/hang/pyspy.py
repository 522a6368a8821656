"""The only caller of py-spy. It reads stacks without stopping the process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ddpdoctor.hang.snapshot import ThreadStack
from ddpdoctor.stackframes import Frame, origin_of

PARALLEL: Final = 8
MAX_THREADS: Final = 2_000  # the main thread is the first
MAX_FRAMES: Final = 200  # of a thread that are kept at each end
ARGUMENTS: Final = ("rank", "world_size", "src", "dst", "group_src", "group_dst")
RANK_LOCALS: Final = ("i", "rank", "local_rank")  # torch's `_wrap(fn, i, ...)`, then common names
PERMISSION_HELP: Final = (
    "run it as root (`sudo ddpdoctor diagnose`), or in a container start that with "
    "--cap-add SYS_PTRACE, or allow it on this host: `sysctl kernel.yama.ptrace_scope=0`"
)


@dataclass(frozen=True)
class Dump:
    """What py-spy said of one process: its threads, or why there are none."""

    pid: int
    threads: tuple[ThreadStack, ...] = ()
    refusal: str | None = None
    rank: int | None = None  # from the locals, where they were asked for
    arguments: tuple[tuple[str, int], ...] = ()  # the same, of torch.distributed's functions


def find_pyspy() -> str | None:
    """The py-spy that was installed with this package, or one on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump_all(
    pids: Sequence[int], timeout_s: float, *, with_locals: bool = False
) -> dict[int, Dump]:
    """Stacks of all these processes, by pid, read side by side."""
    program = find_pyspy()
    if program is None:
        reason = "py-spy is not installed here: pip install py-spy"
        return {pid: Dump(pid, refusal=reason) for pid in pids}
    with ThreadPoolExecutor(PARALLEL) as pool:
        dumps = pool.map(lambda pid: _dump(program, pid, timeout_s, with_locals), pids)
        return {dump.pid: dump for dump in dumps}


def _dump(program: str, pid: int, timeout_s: float, with_locals: bool) -> Dump:
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    if with_locals:
        command.append("--locals")
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Dump(pid, refusal=f"py-spy gave no answer within {timeout_s:.0f} s")
    except OSError as error:
        return Dump(pid, refusal=f"py-spy cannot be started ({error.strerror})")
    if done.returncode:
        return Dump(pid, refusal=_refusal(done.stderr.decode(errors="replace")))
    return parse(pid, done.stdout)


def native_calls(pid: int, timeout_s: float) -> tuple[str, ...]:
    """The C functions that the main thread is in, innermost first; () where they cannot be told.

    Reading them stops the process for some 0.2 s, so it is for one that stands still already.
    """
    program = find_pyspy()
    if program is None:
        return ()
    command = [program, "dump", "--native", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
        return () if done.returncode else parse_native(pid, done.stdout)
    except (subprocess.TimeoutExpired, OSError):
        return ()


def parse_native(pid: int, output: bytes) -> tuple[str, ...]:
    """`clock_nanosleep (libc.so.6)`, down to the first line of Python."""
    found: list[str] = []
    try:
        frames = next(t["frames"] for t in json.loads(output) if t.get("os_thread_id") == pid)
        for frame in frames[:_NATIVE_SHOWN]:
            if not frame.get("module"):
                break
            library = str(frame["module"]).rsplit("/", 1)[-1]
            found.append(f"{str(frame['name'])[:100]} ({library[:60]})")
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return ()
    return tuple(found)


_NATIVE_SHOWN: Final = 8


def _refusal(stderr: str) -> str:
    if "permission denied" in stderr.casefold() or "operation not permitted" in stderr.casefold():
        return f"its stacks may not be read by this user: {PERMISSION_HELP}"
    first = next((line for line in stderr.splitlines() if line.strip()), "no reason given")
    return f"py-spy could not read it ({first.removeprefix('Error: ').strip()})"


def parse(pid: int, output: bytes) -> Dump:
    """py-spy's JSON, which carries no version: what is missing or odd becomes a refusal."""
    try:
        document = json.loads(output)
        threads = tuple(_thread(thread) for thread in document[:MAX_THREADS])
        return Dump(pid, threads, rank=_rank(document), arguments=_arguments(pid, document))
    except (ValueError, KeyError, TypeError) as error:
        return Dump(pid, refusal=f"py-spy's answer is not understood ({type(error).__name__})")


def _thread(thread: dict[str, Any]) -> ThreadStack:
    return ThreadStack(
        thread.get("os_thread_id"),
        str(thread.get("thread_name") or ""),
        tuple(_frame(frame) for frame in _ends(thread["frames"])),
        bool(thread.get("active")),
        bool(thread.get("owns_gil")),
    )


def _ends(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a recursion without end, where it is and how it was entered."""
    if len(frames) <= 2 * MAX_FRAMES:
        return frames
    return frames[:MAX_FRAMES] + frames[-MAX_FRAMES:]


def _frame(frame: dict[str, Any]) -> Frame:
    file, function = str(frame["filename"]), str(frame["name"])
    return Frame(file, int(frame["line"]), function, origin_of(file))


def _rank(document: list[dict[str, Any]]) -> int | None:
    """The rank that torch.multiprocessing gave to `_wrap`, else a local variable of that name."""
    found: dict[str, int] = {}
    for thread in document:
        for frame in thread["frames"]:
            is_wrap = frame["filename"].endswith("torch/multiprocessing/spawn.py")
            for local in frame.get("locals") or ():
                name, value = local["name"], str(local.get("repr"))
                known = name in RANK_LOCALS and (name != "i" or is_wrap)
                if known and value.isdecimal():
                    found[name] = int(value)
    return next((found[name] for name in RANK_LOCALS if name in found), None)


def _arguments(pid: int, document: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Whole numbers by which torch's functions are called in the main thread, innermost first."""
    found: dict[str, int] = {}
    for thread in document:
        for frame in thread["frames"] if thread.get("os_thread_id") == pid else ():
            if "torch/distributed/" not in frame["filename"]:
                continue
            for local in frame.get("locals") or ():
                value = str(local.get("repr"))
                if local["name"] in ARGUMENTS and value.isdecimal() and len(value) < _DIGITS:
                    found.setdefault(local["name"], int(value))
    return tuple(sorted(found.items()))


_DIGITS: Final = 8  # a rank has fewer
