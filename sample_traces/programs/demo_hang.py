"""`make demo-hang`: three real ranks of which one stops taking part, and what diagnose says."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = Path(__file__).parent / "train.py"
FINDINGS = 1  # the exit status of a diagnosis that found something
HANGS_WITHIN = 60.0


def main() -> int:
    folder = tempfile.mkdtemp(prefix="ddpdoctor-demo-")
    print("Training on three ranks, unrecorded. Rank 1 will wait for a file that never comes.")
    print("$ torchrun --nproc-per-node 3 train.py --fault hang &", flush=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3",
        str(TRAIN), "--fault", "hang",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    job = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,  # torchrun's traceback when it is ended
    )  # fmt: skip
    try:
        wait_for_the_hang(job)
        print("\n$ ddpdoctor diagnose", flush=True)
        look = [sys.executable, "-m", "ddpdoctor", "diagnose", "--pid", str(job.pid)]
        diagnosed = subprocess.run(look, timeout=60, check=False)
    finally:
        job.send_signal(signal.SIGTERM)  # torchrun ends its ranks
        job.wait(timeout=60)
    return 0 if diagnosed.returncode == FINDINGS else diagnosed.returncode or 1


def wait_for_the_hang(job: subprocess.Popen[bytes]) -> None:
    """Rank 1 says when it stops; the others then need a moment to come to their collective."""
    deadline = time.monotonic() + HANGS_WITHIN
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith(b"rank 1 waits"):
            time.sleep(1)
            return
        if time.monotonic() > deadline:
            break
    raise SystemExit("the job did not come to its fault")


if __name__ == "__main__":
    sys.exit(main())
