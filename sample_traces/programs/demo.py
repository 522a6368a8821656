"""`make demo`: record two real ranks of which one is slow, and show what the report says."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = Path(__file__).parent / "train.py"
FINDINGS = 1  # the exit status of a report that found something


def main() -> int:
    folder = tempfile.mkdtemp(prefix="ddpdoctor-demo-")
    print("Training on two ranks (gloo, CPU). Rank 1 is slow somewhere in its backward.\n")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(TRAIN), "--wrap", "--fault", "backward",
    ]  # fmt: skip
    print("$ torchrun --nproc-per-node 2 train.py --wrap --fault backward", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    trained = subprocess.run(command, cwd=folder, env=environment, timeout=120, check=False)
    if trained.returncode != 0:
        return trained.returncode
    print(f"\n$ cd {folder}\n$ ddpdoctor report", flush=True)
    report = [sys.executable, "-m", "ddpdoctor", "report"]
    reported = subprocess.run(report, cwd=folder, timeout=60, check=False)
    if reported.returncode != FINDINGS:
        return reported.returncode or 1
    print(
        "\nThe line it names is where the sleep is. Try next, with .venv/bin on your PATH:\n"
        f"  ddpdoctor report {folder}/ddpdoctor_runs/* --json    the same for machines\n"
        "  ddpdoctor explain DD101                              what is measured, and when "
        "it is wrong\n"
        "  ddpdoctor run --nproc-per-node 2 your_script.py      an unchanged script of yours\n"
        f"  ddpdoctor dashboard {folder}/ddpdoctor_runs/*        the timeline in a browser\n"
        "  make demo-hang                                       a hung job, diagnosed\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
