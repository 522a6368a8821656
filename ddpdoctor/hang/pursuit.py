"""What kind of work a rank is at while others wait for it, by names of functions and files.

Names hint and prove nothing: they choose the advice, never the culprit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddpdoctor.hang.activity import is_importing
from ddpdoctor.hang.snapshot import RankProcess
from ddpdoctor.stackframes import Frame

_LONGER: Final = "let the others wait longer: `init_process_group(timeout=timedelta(hours=2))`"


@dataclass(frozen=True)
class Pursuit:
    """`doing` completes `rank 0 is ...`; `fix` is what mends that kind of thing."""

    doing: str
    fix: str


@dataclass(frozen=True)
class _Sign:
    """Matched against the innermost frames: the file's path, or the function's name."""

    pursuit: Pursuit
    files: re.Pattern[str]
    functions: re.Pattern[str]


_NEVER: Final = re.compile(r"(?!)")
_IMPORTING: Final = Pursuit(
    "importing a module",
    "A first import may take minutes on a shared file system: import before init_process_group, or "
    f"{_LONGER}.",
)
_SIGNS: Final = (
    _Sign(
        Pursuit(
            "compiling",
            "Warm up what is compiled on all ranks, by one batch before the first collective that "
            "counts, and share the compile cache (TORCHINDUCTOR_CACHE_DIR); or " + _LONGER + ".",
        ),
        re.compile(r"/torch/(_dynamo|_inductor|_functorch)/|/triton/|cpp_extension\.py$"),
        _NEVER,
    ),
    _Sign(
        Pursuit(
            "waiting for a logging service",
            "Start the logger before init_process_group, give it a timeout or let it work offline "
            "(wandb: WANDB_MODE=offline, `init_timeout`): all ranks wait for rank 0's.",
        ),
        re.compile(r"/(wandb|mlflow|comet_ml|neptune|clearml|aim|swanlab)/"),
        re.compile(r"(?i)wandb|mlflow|tracker"),
    ),
    _Sign(
        Pursuit(
            "downloading",
            "Download before the job, or on one rank before init_process_group, with a timeout.",
        ),
        re.compile(r"/(huggingface_hub|requests|urllib3|fsspec|boto3|botocore|s3fs|gcsfs)/|"
                   r"urllib/request\.py$|torch/hub\.py$"),
        re.compile(r"(?i)download"),
    ),
    _Sign(
        Pursuit(
            "tokenising",
            "Tokenise once, before the job, and read the result; or " + _LONGER + ".",
        ),
        re.compile(r"/(tokenizers|sentencepiece|tiktoken)/"),
        re.compile(r"(?i)tokeni[sz]e|encode_batch"),
    ),
    _Sign(
        Pursuit(
            "preparing data",
            "Prepare the data once, before the job, and read the result; or " + _LONGER + ".",
        ),
        re.compile(r"/datasets/(arrow_dataset|builder)\.py$"),
        re.compile(r"(?i)pre_?process|prepare_data|build_(dataset|index|cache)"),
    ),
    _Sign(
        Pursuit(
            "saving",
            "Save on all ranks in parts (torch.distributed.checkpoint), or to a faster disk and "
            "copy later; or " + _LONGER + ".",
        ),
        re.compile(r"torch/serialization\.py$|/safetensors/|distributed/checkpoint/"),
        re.compile(r"(?i)save|checkpoint|dump"),
    ),
    _Sign(
        Pursuit(
            "evaluating",
            "Evaluate on all ranks, each its share, and reduce the result; or " + _LONGER + ".",
        ),
        _NEVER,
        re.compile(r"(?i)eval|valid|test_epoch|predict|infer"),
    ),
    _Sign(
        Pursuit(
            "waiting for a lock or another thread",
            "See who holds it: `-v` shows the other threads. Give the wait a timeout.",
        ),
        re.compile(r"/(threading|queue)\.py$|/filelock/"),
        re.compile(r"(?i)^(acquire|join)$"),
    ),
    _Sign(
        Pursuit("waiting for a program that it started", "Give subprocess a timeout."),
        re.compile(r"/subprocess\.py$"),
        _NEVER,
    ),
)  # fmt: skip


def pursuit_of(rank: RankProcess) -> Pursuit | None:
    """None where no name tells."""
    thread = rank.main_thread
    if thread is None:
        return None
    if is_importing(thread):
        return _IMPORTING
    frames = _innermost(thread.frames)
    for sign in _SIGNS:
        if any(_fits(sign, frame) for frame in frames):
            return sign.pursuit
    return None


def _innermost(frames: Sequence[Frame]) -> list[Frame]:
    """Without the way to the training loop: `main` and `fit` are called in every script."""
    return [frame for frame in frames if frame.function not in ("<module>", "main")]


def _fits(sign: _Sign, frame: Frame) -> bool:
    if sign.files.search(frame.file):
        return True
    return frame.is_script and bool(sign.functions.search(frame.function))
