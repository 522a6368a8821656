"""What `ddpdoctor diagnose` is expected to say of each training that hangs, or that seems to.

Expectations come from the *Verdict* of the report on the fault, and were written down before
diagnose was run on it. Nothing here is read by ddpdoctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.gauntlet.cases import WRAPPED, Case

SCRIPTS = Path(__file__).parent / "hanging"
TORCHRUN = "torchrun"
PATIENT = "torchrun that does not look after its ranks"  # as if it had not noticed yet
BY_HAND = "one process a rank"  # as srun, mpirun or a shell start them
Variables = dict[str, str]


@dataclass(frozen=True)
class Hang(Case):
    """A training that stands still, or is slow (`begins`: what it prints before it is looked at).

    `code` is that of the finding to read first. `left`: what a record that was killed in
    that state must say, beside `code`; () where it cannot know.
    """

    launcher: str = TORCHRUN
    variables: tuple[Variables, ...] = ()  # of each rank, by hand
    begins: str = ""
    left: tuple[str, ...] = ("DD913",)
    dies: int = 0  # ranks that end before the job stands still


_SAME_COUNT = r"drop_last|pad|join"

K01 = (
    Hang("uneven-batches", "H01", "images", code="DD902", culprits=(1,), fix_word=_SAME_COUNT,
         left=("DD304", "DD913")),
    Hang("one-long-rank", "H02", "plots", ranks=4, code="DD902", culprits=(2,),
         fix_word=_SAME_COUNT, left=("DD304", "DD913")),
    Hang("gather-per-scan", "H06", "scans", code="DD902", culprits=(1,), fix_word=_SAME_COUNT),
    Hang("step-barrier-and-epoch", "H07", "storage", ranks=4, code="DD902", culprits=(3,),
         or_codes=("DD905",), fix_word=r"equal|same|drop_last|pad"),
    Hang("done-flag", "H10", "chat", code="DD904", culprits=None, or_codes=("DD905",),
         fix_word=r"same (collectives|calls)|same order|all ranks",
         # a record knows how many batches each loader has, which is why they disagree: "uneven
         # batches met an end-of-epoch handshake"
         left=("DD304", "DD913")),
)  # fmt: skip

K02 = (
    Hang("validation-on-rank-0", "H12", "particles", ranks=3, code="DD904", culprits=(0,),
         or_codes=("DD902", "DD905"), fix_word=r"model\.module"),
    Hang("early-return-before-barrier", "H14", "sparse_codes", ranks=3, code="DD904",
         culprits=(0,), or_codes=("DD905",), fix_word=r"all ranks|rank == 0|return"),
    Hang("callback-returns", "H16", "animals", ranks=3, code="DD904", culprits=(0,),
         or_codes=("DD905", "DD902"), fix_word=r"all ranks|condition|return"),
    Hang("keys-differ", "H18", "two_losses", code="DD904", culprits=None, or_codes=("DD905",),
         fix_word=r"all ranks|same"),
    Hang("save-best-differs", "H19", "best_so_far", ranks=3, code="DD904", culprits=None,
         or_codes=("DD905",), fix_word=r"reduce|broadcast|decide|decision"),
    Hang("barrier-in-reading", "H21", "glue", ranks=3, code="DD904", culprits=(0,),
         or_codes=("DD905", "DD902"), fix_word=r"all ranks|rank == 0"),
    Hang("log-on-rank-0", "H22", "groups_of_people", ranks=3, code="DD904", culprits=(0,),
         or_codes=("DD905",), fix_word=r"all ranks|rank == 0"),
)  # fmt: skip

K03 = (
    Hang("stops-alone", "H24", "patience", code="DD902", culprits=(1,),
         fix_word=r"reduce|decide"),
    Hang("trainer-stops-alone", "H25", "trainer", ranks=4, code="DD902", culprits=(2,),
         fix_word=r"reduce|decide"),
    Hang("only-rank-0-stops", "H26", "boxes", ranks=3, code="DD902", culprits=(0,),
         fix_word=r"reduce|broadcast|decide"),
    Hang("skips-a-batch", "H30", "answers", code="DD902", culprits=(1,),
         or_codes=("DD905", "DD506"), fix_word=r"skip|decide|together|equally",
         left=("DD506", "DD913")),
)  # fmt: skip

K04 = (
    Hang("memory-error-swallowed", "H34", "long_samples", ranks=3, code="DD902", culprits=(1,),
         or_codes=("DD905",), fix_word=r"except|skip|together", left=("DD506", "DD913")),
    Hang("retries-in-parts", "H35", "microbatches", ranks=3, code="DD902", culprits=(1,),
         or_codes=("DD905",), fix_word=r"except|together|same|equally", left=("DD506", "DD913")),
    Hang("killed-while-preparing", "H38", "corpus", ranks=3, code="DD901", culprits=(1,),
         fix_word=r"memory", launcher=PATIENT, dies=1, left=("DD901",)),
    Hang("ignores-sigterm", "H39", "ignores_end", ranks=3, code="DD901", culprits=(1,),
         fix_word=r"kill -9|SIGKILL", dies=1, left=("DD901",)),
)  # fmt: skip

K06_K07 = (
    Hang("order-of-a-set", "H49", "influence", code="DD904", or_codes=("DD911",),
         fix_word=r"same order"),
    Hang("group-by-members", "H57", "expert_groups", ranks=3, code="DD911", culprits=None,
         or_codes=("DD904", "DD903"), fix_word=r"new_group|same order|all ranks"),
    Hang("both-send", "H59", "pipeline", code="DD904",
         fix_word=r"batch_isend_irecv|first"),
)  # fmt: skip

_ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}

K14_K15 = (
    Hang("fewer-tasks-than-world", "H113", "slurm", modes=("plain",), code="DD407",
         or_codes=("DD403",), culprits=(2,), fix_word=r"WORLD_SIZE|ntasks|start",
         launcher=BY_HAND, left=(),
         variables=tuple(_ADDRESS | {"RANK": str(r), "WORLD_SIZE": "3"} for r in range(2))),
    Hang("both-are-rank-0", "H112", "tasks", modes=("plain",), code="DD401",
         or_codes=("DD407",), culprits=None, fix_word=r"RANK", left=()),
    Hang("port-of-another-job", "H119", "slurm", modes=("plain",), code="DD408",
         or_codes=("DD901",), culprits=None, fix_word=r"port", launcher=BY_HAND, port=29543,
         dies=1, left=(),
         variables=tuple(
             _ADDRESS | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_PORT": "29543"}
             for r in range(2)
         )),
    Hang("wrong-port", "H130", "slurm", modes=("plain",), code="DD407",
         or_codes=("DD408", "DD404"), culprits=None, fix_word=r"port|firewall",
         launcher=BY_HAND, left=(),
         variables=tuple(
             _ADDRESS | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_PORT": str(29545 + r)}
             for r in range(2)
         )),
)  # fmt: skip

# Without a report of their own: what differs between the ranks before their first step.
STARTS = (
    Hang("debug-detail-on-one", "", "slurm", code="DD404", culprits=None,
         fix_word=r"same value|launcher", launcher=BY_HAND,
         variables=tuple(
             _ADDRESS | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_PORT": "29547"} | more
             for r, more in enumerate([{}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}])
         ), modes=("plain",), left=()),
    Hang("one-is-not-wrapped", "", "one_without", ranks=3, code="DD406", culprits=(2,),
         fix_word=r"wrap", left=()),
    # of a rank that is not recorded the arguments are not known
    Hang("one-searches", "", "heads", modes=("plain",), code="DD904", culprits=None,
         fix_word=r"same|all ranks", left=()),
    Hang("one-searches-recorded", "", "heads", modes=(WRAPPED,), code="DD405", culprits=None,
         fix_word=r"same arguments", left=("DD405",)),
)  # fmt: skip

K17 = (
    Hang(
        "opened-before-fork",
        "H140",
        "lightning_memory",
        code="DD907",
        culprits=None,
        fix_word=r"in the worker|fork",
        left=(),
    ),
    Hang(
        "worker-gets-no-answer",
        "H141",
        "remote_files",
        ranks=3,
        code="DD907",
        culprits=(0,),
        fix_word=r"num_workers=0|timeout",
    ),
)

K19 = (
    Hang("tracker-does-not-start", "H152", "tracker", ranks=3, code="DD903", culprits=(0,),
         fix_word=r"logg|service|wait"),
    Hang("gil-in-native-code", "H153", "native", code="DD909", culprits=(1,),
         fix_word=r"GIL|lock"),
    Hang("debug-barrier", "H154", "prefetch", ranks=4, code="DD903", culprits=(1, 3),
         or_codes=("DD907",), fix_word=r"waits for|all ranks"),
    Hang("thread-of-a-logger", "H150", "uploads", code="DD912", culprits=None,
         fix_word=r"thread|daemon|logger", left=()),
)  # fmt: skip

HANGS = K01 + K02 + K03 + K04 + K06_K07 + K14_K15 + STARTS + K17 + K19

# K18: told to be slow, and nothing at warning or above.
SLOW = (
    Hang("tokenises", "H146", "tokenise", code="DD906", culprits=None, at_least="info",
         fix_word=r"timeout", begins="begins", left=()),
    Hang("validates-alone", "H148", "validate_alone", code="DD906", culprits=None,
         at_least="info", fix_word=r"timeout|share|all ranks", begins="begins", left=()),
    Hang("compiles-on-one", "H149", "first_compile", code="DD906", culprits=None,
         at_least="info", fix_word=r"warm|compil", begins="begins", left=()),
    Hang("writes-a-checkpoint", "", "checkpoints", code="DD906", culprits=None, at_least="info",
         begins="begins", left=()),
    Hang("slow-disk", "", "slow_disk", code="DD906", culprits=None, at_least="info",
         begins="begins", left=()),
    Hang("long-steps", "", "big_model", code="DD906", culprits=None, at_least="info",
         begins="begins", left=()),
    Hang("slow-download", "", "download", code="DD906", culprits=None, at_least="info",
         begins="begins", left=()),
)  # fmt: skip

HANG_CASES = HANGS + SLOW

# Reports of K01 to K04, K06, K07, K14, K15 and K17 to K19 that have no case here, and why.
HANGS_LEFT_OUT = {
    "H04": "its hang is that of H01; how the sizes came to differ is told by the record (cases.py)",
    "H09": "gloo turns it into an error of the survivors",
    "H11": "gloo aborts",
    "H13": "gloo ends with an error, since the others took the group down",
    "H28": "nothing hangs, the training only ends early",
    "H31": "nothing hangs: see DD505 in cases.py",
    "H32": "nothing hangs: see DD501 and DD506 in cases.py",
    "H37": "gloo turns it into an error of the survivors; H38 is the form that hangs",
    "H50": "the same as H49",
    "H52": "gloo aborts",
    "H53": "gloo ends with an error that names the sizes",
    "H55": "code that differs does not hang by itself: see DD404",
    "H61": "needs CUDA",
    "H62": "needs NCCL",
    "H114": "needs a GPU",
    "H116": "needs GPUs",
    "H118": "needs GPUs with a broken peer-to-peer path",
    "H121": "needs NCCL",
    "H123": "ends by a signal: see cases.py",
    "H124": "argparse ends every rank with a message of its own before torch is used",
    "H125": "needs two hosts",
    "H127": "gloo ends with an error at once",
    "H128": "needs two hosts",
    "H142": "torch's loader raises where a worker is killed",
    "H144": "needs a GPU",
}
