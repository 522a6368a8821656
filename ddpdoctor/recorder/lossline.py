"""Where a program multiplies a loss by the number of ranks: a look at the lines of its own files.

Only once, and only after a loss was seen to be multiplied by that number.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Final

from ddpdoctor.events import Site
from ddpdoctor.recorder.callsite import is_user_file

_RANKS: Final = re.compile(r"world|replicas|gpus|nprocs|ranks", re.IGNORECASE)
_LOSS: Final = re.compile(r"loss|criterion|objective|\.backward\(", re.IGNORECASE)
_TOLD: Final = re.compile(
    r"\.(item|detach|cpu|tolist)\(|\bfloat\(\w*loss"
)  # in a log, not trained on
_MOST_BYTES: Final = 1_000_000
_MOST_FRAMES: Final = 200
_SIMPLE: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)


def files_of(frame: FrameType | None) -> list[str]:
    """The user's files on a stack, innermost first."""
    found: dict[str, None] = {}
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if is_user_file(frame.f_code.co_filename):
            found[frame.f_code.co_filename] = None
        frame = frame.f_back
    return list(found)


def line_of_factor(files: Iterable[str]) -> Site | None:
    """The first statement that multiplies a loss by what is named for the number of ranks."""
    for file in files:
        try:
            path = Path(file)
            if path.stat().st_size > _MOST_BYTES:
                continue
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        found = _in_scope(tree, "<module>")
        if found is not None:
            return Site(file, *found)
    return None


def _in_scope(tree: ast.AST, scope: str) -> tuple[int, str] | None:
    """Line and function."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _SIMPLE) and _multiplies(child):
            return child.lineno, scope
        inside = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = child.name if scope == "<module>" else f"{scope}.{child.name}"
        if not isinstance(child, ast.expr):
            found = _in_scope(child, inside)
            if found is not None:
                return found
    return None


def _multiplies(statement: ast.stmt) -> bool:
    operands: list[ast.expr] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            operands += [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            operands.append(node.value)
    if not any(map(_names_the_ranks, operands)):
        return False
    said = ast.unparse(statement)
    return _LOSS.search(said) is not None and _TOLD.search(said) is None


def _names_the_ranks(operand: ast.expr) -> bool:
    """A name, an attribute or a call without more to it, such as `dist.get_world_size()`."""
    if isinstance(operand, ast.Call):
        arguments = [argument for argument in operand.args if _names_the_ranks(argument)]
        return bool(arguments) or _names_the_ranks(operand.func)
    if isinstance(operand, ast.Attribute):
        return _RANKS.search(operand.attr) is not None
    return isinstance(operand, ast.Name) and _RANKS.search(operand.id) is not None
