"""Text for the terminal: foreign strings as text, and tables that never cut a number.

Names, paths, messages and facts come from files and processes of others. They may hold rich's
markup or a terminal's control codes; `said` is the only way by which they become output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpdoctor.wording import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

LEAST_WIDTH: Final = 100  # of what is no terminal: a file, a pipe, a log
FOLDED_WIDTH: Final = 14  # of a column of words, beyond which it may be folded
_GAP: Final = 2
_TRAILING: Final = re.compile(r" +$", re.MULTILINE)


def said(text: str, style: str = "") -> Text:
    """A foreign string as text: no markup, no control characters."""
    return Text(printable(text), style=style)


class TextConsole(Console):
    """Writes to standard output, or to standard error."""

    def on_broken_pipe(self) -> None:
        """rich would exit by 1, which means findings here: see `streams.reader_may_leave`."""
        raise BrokenPipeError


class _WithoutTrailingSpaces:
    """What rich fills its lines up with is of no use in a file or a pipe."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.encoding = file.encoding

    def write(self, text: str) -> int:
        return self._file.write(_TRAILING.sub("", text))

    def flush(self) -> None:
        self._file.flush()


def text_console(*, stderr: bool = False) -> Console:
    console = TextConsole(stderr=stderr)
    if console.is_terminal:
        return console
    file = cast(IO[str], _WithoutTrailingSpaces(sys.stderr if stderr else sys.stdout))
    return TextConsole(width=max(LEAST_WIDTH, console.width), file=file)


@dataclass(frozen=True)
class Columns:
    """A table where it fits, else a block of lines for each row: no number is ever cut.

    Columns in `words` may be folded, all others hold numbers and short words.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()  # not aligned to the right; words never are

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width() <= options.max_width:
            yield self._table()
        else:
            yield from self._blocks()

    def _least_width(self) -> int:
        widths = []
        for index, name in enumerate(self.names):
            cells = (name, *(row[index] for row in self.rows))
            width = max(cell_len(printable(cell)) for cell in cells)
            widths.append(min(width, FOLDED_WIDTH) if name in self.words else width)
        return sum(widths) + _GAP * (len(widths) - 1)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in self.names:
            folds = name in self.words
            right = not folds and name not in self.left
            table.add_column(
                name,
                justify="right" if right else "left",
                no_wrap=not folds,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(said(cell) for cell in row))
        return table

    def _blocks(self) -> Iterator[Text]:
        width = max(len(name) for name in self.names[1:])
        for title, *cells in self.rows:
            yield said(f"{self.names[0]}: {title}")
            for name, cell in zip(self.names[1:], cells, strict=True):
                if cell:
                    yield Text(f"  {name:{width}}  ", style="dim").append_text(said(cell))
