"""The conditions in a source file, and the lines that are reached by some ranks only for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ddpdoctor.stackframes import Condition, Loop

_SHOWN: Final = 80  # characters of a test
_LEAVES: Final = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_BY_RANK: Final = re.compile(
    r"(?i)rank|is_(main|master|chief|primary|global_zero|first)|main_process|global_zero|"
    r"local_master|PROCID"
)
_ALIKE: Final = re.compile(  # what is the same on all ranks decides nothing between them
    r"(?i)is_initialized|is_available|is_nccl_available|is_gloo_available|distributed|world_?size|"
    r"num_?(gpus|ranks|processes)|nprocs?\b"
)
_ALL_RANKS: Final = re.compile(r"(?i)num_?ranks|ranks\b|world")  # asks how many there are


def conditions_in(tree: ast.AST) -> Iterator[tuple[Loop, Condition]]:
    """Each `if` with the lines that depend on it: its blocks, or what lies behind a way out."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _in_block(block)


def _in_block(block: Sequence[ast.AST]) -> Iterator[tuple[Loop, Condition]]:
    for index, node in enumerate(block):
        if not isinstance(node, ast.If) or _is_main_guard(node):
            continue
        condition = _condition(node)
        if not condition.by_rank and _ALIKE.search(condition.text):
            continue
        for inside in (node.body, node.orelse):
            if inside:
                yield _span(inside[0], inside[-1]), condition
        behind = block[index + 1 :]
        if behind and isinstance(node.body[-1], _LEAVES):
            yield _span(behind[0], behind[-1]), replace(condition, leaves=True)


def _condition(node: ast.If) -> Condition:
    text = ast.unparse(node.test)
    by_rank = bool(_BY_RANK.search(_ALL_RANKS.sub("", text)))
    return Condition(node.lineno, text[:_SHOWN], by_rank)


def _is_main_guard(node: ast.If) -> bool:
    return "__name__" in ast.unparse(node.test)


def _span(first: ast.AST, last: ast.AST) -> Loop:
    return Loop(getattr(first, "lineno", 0), getattr(last, "end_lineno", 0) or 0)
