"""Choose the cheapest set of kernels that gives the outputs (design, section 9)."""

from fissile.select.program import ALL_ROWS, KORCH, SECTION_9, Column, MalformedProblem, Problem
from fissile.select.solve import Selected, select

__all__ = [
    "ALL_ROWS",
    "KORCH",
    "SECTION_9",
    "Column",
    "MalformedProblem",
    "Problem",
    "Selected",
    "select",
]
