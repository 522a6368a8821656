"""What py-spy says, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.hang import pyspy
from ddpdoctor.hang.pyspy import dump_all, find_pyspy, parse
from ddpdoctor.stackframes import Origin, origin_of

NOBODY = 65534


def thread(*frames: dict[str, object], **facts: object) -> dict[str, object]:
    return {"os_thread_id": 5, "thread_name": "MainThread", "frames": list(frames)} | facts


def frame(file: str, line: int = 3, name: str = "f", **local: str) -> dict[str, object]:
    shown = [{"name": key, "repr": value} for key, value in local.items()]
    return {"filename": file, "line": line, "name": name, "locals": shown}


def encoded(*threads: dict[str, object]) -> bytes:
    return json.dumps(threads).encode()


def test_threads_and_frames() -> None:
    dump = parse(5, encoded(thread(frame("/home/user/train.py", 12, "main"), owns_gil=True)))

    (found,) = dump.threads
    assert (found.os_thread_id, found.name, found.owns_gil) == (5, "MainThread", True)
    assert (found.frames[0].line, found.frames[0].function) == (12, "main")
    assert found.frames[0].is_user


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("/home/user/train.py", Origin.USER),
        ("/env/lib/python3.11/site-packages/torch/_tensor.py", Origin.TORCH),
        ("/env/lib/python3.11/site-packages/torchvision/io.py", Origin.LIBRARY),
        ("/usr/lib/python3/dist-packages/lightning/trainer.py", Origin.LIBRARY),
        ("/usr/lib/python3.11/selectors.py", Origin.PYTHON),
        ("<frozen runpy>", Origin.PYTHON),
        ("/home/user/pytorch/torch/distributed/distributed_c10d.py", Origin.TORCH),
        ("/home/user/ddpdoctor/recorder/loader.py", Origin.RECORDER),
        ("/home/user/lib/python3-tools/train.py", Origin.USER),
    ],
)
def test_whose_code_a_file_is(file: str, origin: Origin) -> None:
    assert origin_of(file) is origin


def test_the_rank_that_torch_multiprocessing_gave() -> None:
    wrap = frame("/x/torch/multiprocessing/spawn.py", name="_wrap", i="2")
    loop = frame("/home/user/train.py", rank="7", i="99")

    assert parse(5, encoded(thread(loop, wrap))).rank == 2
    assert parse(5, encoded(thread(loop))).rank == 7
    assert parse(5, encoded(thread(frame("/home/user/train.py", i="4")))).rank is None
    assert parse(5, encoded(thread(frame("/home/user/train.py", rank="None")))).rank is None


@pytest.mark.parametrize(
    "answer", [b"", b"not json", b'[{"os_thread_id": 1}]', b"3", b'[{"frames": [{}]}]']
)
def test_an_answer_that_is_not_understood_is_a_refusal(answer: bytes) -> None:
    dump = parse(5, answer)

    assert dump.threads == ()
    assert "not understood" in (dump.refusal or "")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.job
def test_a_live_and_a_missing_process(sleeper: subprocess.Popen[bytes]) -> None:
    gone = 2**22 - 1

    dumps = dump_all([sleeper.pid, gone], 10)

    (main,) = dumps[sleeper.pid].threads
    assert main.os_thread_id == sleeper.pid
    assert main.frames[-1].function == "<module>"
    assert "could not read" in (dumps[gone].refusal or "")


@pytest.mark.job
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused_with_help(
    sleeper: subprocess.Popen[bytes],
) -> None:
    code = (
        "import os, sys; from ddpdoctor.hang import pyspy; import shutil\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"sys.stdout.write(str(pyspy.dump_all([{sleeper.pid}], 10)[{sleeper.pid}].refusal))"
    )

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True,
        cwd=Path(pyspy.__file__).parents[2],
    ).stdout  # fmt: skip

    assert "may not be read by this user" in said
    assert "SYS_PTRACE" in said
    assert "ptrace_scope" in said


def test_no_pyspy_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_pyspy() is None
    assert "pip install py-spy" in (dump_all([1], 1)[1].refusal or "")


def test_a_pyspy_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    began = time.monotonic()
    dump = dump_all([1], 0.3)[1]

    assert "no answer within" in (dump.refusal or "")
    assert time.monotonic() - began < 10


def test_a_recursion_without_end_is_cut_in_the_middle() -> None:
    frames = [frame("/home/user/train.py", line, "f") for line in range(1, 100_001)]
    threads = [thread(*frames), *({"os_thread_id": n, "frames": []} for n in range(5_000))]

    dump = parse(5, encoded(*threads))

    lines = [each.line for each in dump.threads[0].frames]
    assert (lines[0], lines[-1], len(lines)) == (1, 100_000, 2 * pyspy.MAX_FRAMES)
    assert len(dump.threads) == pyspy.MAX_THREADS


def test_the_c_functions_of_a_process_that_keeps_the_gil() -> None:
    code = "import ctypes\nctypes.PyDLL(None).sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20
        while not (found := pyspy.native_calls(process.pid, 5)) or "sleep" not in found[0]:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait(10)

    assert any("libc" in each for each in found)


@pytest.mark.parametrize("output", [b"", b"[]", b"[1]", b'[{"os_thread_id": 5}]', b"{}"])
def test_native_frames_that_are_not_told(output: bytes) -> None:
    assert pyspy.parse_native(5, output) == ()
