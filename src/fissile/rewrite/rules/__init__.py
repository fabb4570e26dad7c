"""The table of rules, by theme."""

from fissile.rewrite.rule import RULES
from fissile.rewrite.rules import (
    convolutions,
    elementary,
    found,
    functions,
    layout,
    linear,
    products,
    ranges,
    sums,
    turns,
    windows,
)

# importing them fills the table
THEMES = (
    convolutions, elementary, found, functions, layout, linear, products, ranges, sums,
    turns, windows,
)  # fmt: skip

__all__ = ["RULES", "THEMES"]
