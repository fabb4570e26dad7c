"""The equations of `found.txt`, which `fissile.rewrite.generate` writes."""

from __future__ import annotations

from pathlib import Path

from fissile.rewrite.pattern import example, look, parse
from fissile.rewrite.rule import rule

TABLE = Path(__file__).with_name("found.txt")


def enter(lines: list[str]) -> None:
    """Make rules of equations, one a line."""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            equation = parse(line)
            register = rule(
                str(equation), equation.left.prim, example=example(equation), source="search"
            )
            register(look(equation))


enter(TABLE.read_text(encoding="utf-8").splitlines())
