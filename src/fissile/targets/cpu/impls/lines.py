"""Lines of C++ put together: blocks between braces, sums without their empty parts."""

from __future__ import annotations

from collections.abc import Sequence


def block(head: str, lines: Sequence[str], tail: str = "}") -> list[str]:
    """Lines between braces, indented."""
    return [head, *("  " + line for line in lines), tail]


def plus(*terms: str | int | tuple[int, str]) -> str:
    """A sum of names, numbers and products (factor, name). A product's name that is no single one
    is put in parentheses.

    >>> plus("in", (64, "left"), (1, "m0"), (0, "g"), -3)
    'in + 64 * left + m0 - 3'
    """
    shown: list[str] = []
    for term in terms:
        factor, name = term if isinstance(term, tuple) else (1, term)
        if isinstance(name, int):
            factor, name = name, ""
        if not factor:
            continue
        number = "" if abs(factor) == 1 and name else str(abs(factor))
        if isinstance(term, tuple) and not (name.isidentifier() or name.startswith("(")):
            name = f"({name})"
        shown += ["-" if factor < 0 else "+", " * ".join(part for part in (number, name) if part)]
    if not shown:
        return "0"
    return " ".join(shown[1:] if shown[0] == "+" else ["-" + shown[1], *shown[2:]])
