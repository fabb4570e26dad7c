"""The table of rules, by theme."""

from fissile.rewrite.rule import RULES
from fissile.rewrite.rules import elementary, found, layout, linear, products, sums, windows

# importing them fills the table
THEMES = (elementary, found, layout, linear, products, sums, windows)

__all__ = ["RULES", "THEMES"]
