"""The one kind of error that a user sees: what is wrong, where, and what to do about it."""

from __future__ import annotations

from pathlib import Path


class FissileError(Exception):
    """A fault in what the user gave. The command line prints its text and exits with status 1."""


class ModelError(FissileError):
    """The model cannot be read, is not valid, or holds what is not supported."""


class InputError(FissileError):
    """An array given to a compiled model has a wrong name, shape or element type."""


class TargetError(FissileError):
    """The target cannot execute what the model asks for."""


class ToolchainError(FissileError):
    """No C++ compiler, a failing compiler, a full disk, a library that does not load."""


def shown(name: str, limit: int = 80) -> str:
    """A name from a model, safe to print: escaped, quoted and cut to `limit` characters."""
    text = name.encode("unicode_escape").decode("ascii")
    return "'" + (text if len(text) <= limit else text[: limit - 3] + "...") + "'"


def located(path: str | Path, limit: int = 300) -> str:
    """A path for a message: as it is where it is printable and of ordinary length."""
    text = str(path)
    return text if text.isprintable() and len(text) <= limit else shown(text, limit)
