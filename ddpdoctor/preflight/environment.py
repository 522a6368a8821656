"""Variables, command line, versions and code of this process, with secrets left out."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ddpdoctor.credentials import CREDENTIAL_WORDS, MASKED, USER_IN_URL

ALLOWED: Final = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|PYTHONHASHSEED|"
    r"(NCCL|GLOO|OMP|MKL|TORCH|TORCHELASTIC|CUDA|CUBLAS|SLURM|MASTER|PYTORCH)_\w+"
)
_CREDENTIAL: Final = re.compile(CREDENTIAL_WORDS, re.IGNORECASE)
# Long runs of letters and digits with both in them: keys of services look so, names of files do not
_LOOKS_LIKE_A_KEY: Final = re.compile(r"(?=\w*[0-9])(?=\w*[A-Za-z])\w{32,}")
_VERSIONED: Final = ("torch", "numpy", "torchvision", "transformers", "accelerate", "lightning")
_MAX_VALUE: Final = 200  # characters of a variable's value or an argument that are kept
_MAX_ARGUMENTS: Final = 60
_MAX_CODE_FILES: Final = 200
_MAX_CODE_BYTES: Final = 2 * 1024 * 1024


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Variables of the allow-list; values that may be credentials are masked."""
    return {
        name: MASKED if _is_credential(name, value) else value[:_MAX_VALUE]
        for name, value in sorted(variables.items())
        if ALLOWED.fullmatch(name)
    }


def _is_credential(name: str, value: str) -> bool:
    return bool(_CREDENTIAL.search(name)) or bool(USER_IN_URL.search(value))


def command_line(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments, with the values of those that are named like a credential masked."""
    kept: list[str] = []
    masks_next = False
    for argument in arguments[:_MAX_ARGUMENTS]:
        name, equals, value = argument.partition("=")
        is_option = argument.startswith("-")
        if masks_next and not is_option:
            kept.append(MASKED)
        elif equals and _is_credential(name, value):
            kept.append(f"{name}={MASKED}")
        elif USER_IN_URL.search(argument) or _LOOKS_LIKE_A_KEY.fullmatch(argument):
            kept.append(MASKED)
        else:
            kept.append(argument[:_MAX_VALUE])
        masks_next = is_option and not equals and bool(_CREDENTIAL.search(argument))
    return tuple(kept)


def versions() -> dict[str, str]:
    """Of Python and the packages that decide what is computed; none of them is imported."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hashes(files: Iterable[Path], root: Path) -> dict[str, str]:
    """Hash of each file below a folder, by its path from there."""
    found = {}
    below = sorted(path for path in files if path.is_relative_to(root))
    for path in below[:_MAX_CODE_FILES]:
        try:
            with path.open("rb") as opened:
                content = opened.read(_MAX_CODE_BYTES)
        except OSError:
            continue
        found[str(path.relative_to(root))] = hashlib.sha256(content).hexdigest()[:16]
    return found
