"""What the command line prints, and where: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

Update = Callable[[str, float, float], None]  # what is happening, share done, seconds left


@contextmanager
def own_stdout() -> Iterator[None]:
    """Python's stdout stays; what libraries write to file descriptor 1 is dropped: a solver's
    banner, which no option silences, must not stand in a JSON object."""
    sys.stdout.flush()
    try:
        real = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    before = sys.stdout
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        with os.fdopen(os.dup(real), "w", encoding=before.encoding, errors="replace") as sys.stdout:
            yield
    finally:
        sys.stdout = before
        os.dup2(real, 1)
        os.close(real)


@contextmanager
def progress() -> Iterator[Update]:
    """A bar on stderr with the time left, gone when it ends; nothing where stderr is no
    terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, share, left: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, left="")

        def update(what: str, share: float, left: float) -> None:
            bar.update(task, description=what, completed=share, left=_duration(left))

        yield update


def _duration(seconds: float) -> str:
    if not seconds > 0 or math.isinf(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """A table on stdout; cells are data, never markup."""
    grid = Table(*columns, title=Text(title) if title else None, title_justify="left")
    for row in rows:
        grid.add_row(*(Text(number(cell)) for cell in row))
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(grid)


def number(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:.0f}"
    return "-" if cell is None else str(cell)


def write_json(data: Mapping[str, Any]) -> None:
    """One object on stdout; what JSON cannot say (infinity, NaN) is null."""
    sys.stdout.write(json.dumps(_plain(data), indent=1, allow_nan=False) + "\n")


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(k): _plain(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(v) for v in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    return data if isinstance(data, str | int | bool) or data is None else str(data)


def note(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(text.rstrip("\n") + "\n")
