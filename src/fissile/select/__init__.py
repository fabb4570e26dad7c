"""Choose the cheapest set of kernels that gives the outputs (design, section 9)."""

from fissile.select.program import Column, MalformedProblem, Problem

__all__ = ["Column", "MalformedProblem", "Problem"]
