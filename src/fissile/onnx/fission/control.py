"""Control flow: If whose branches are pure.

A subgraph arrives as a function from operands to results.
"""

from __future__ import annotations

from fissile.errors import ModelError
from fissile.ir.prims import reshape, where
from fissile.onnx.rule import fission


@fission("If")
def branch(condition, *, then_branch, else_branch):
    """A known condition takes one branch; otherwise both run and the results are selected."""
    if condition.type.numel != 1:
        raise ModelError("its condition must hold one element")
    if condition.is_constant:
        return then_branch() if condition.array.ravel()[0] else else_branch()
    yes, no = then_branch(), else_branch()
    for a, b in zip(yes, no, strict=True):
        if a.type != b.type:
            raise ModelError(f"its branches give {a.type} and {b.type}; a condition that only run time "
                             "knows needs equal types")  # fmt: skip
    flag = reshape(condition, ())
    return [a if a is b else where(flag, a, b) for a, b in zip(yes, no, strict=True)]
