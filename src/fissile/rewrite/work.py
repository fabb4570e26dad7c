"""Counted work, by which guards and spellings judge: multiplications and bytes.

A product of fixed values is none. A fixed matrix of few non-zeros in a row costs these alone: its
product is a gather and a blend (`kernels/blend`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.rewrite.classes import Classes
from fissile.rewrite.labels import Named, multiplications

SPARSE = 0.25  # a matrix with a larger share of non-zeros is multiplied as a whole
SMALL = 1 << 22  # elements up to which a fixed value is computed to look at it
LEAST = 64  # elements below which nothing is gained by gathering
_SHAPED = ("transpose", "reshape", "slice", "concat", "pad", "gather", "broadcast")


def density(c: Classes, v: Value) -> float:
    """The largest share of non-zeros in a row or column of a fixed matrix; 1 where that is not
    small, or not known without the work of computing it."""
    if not c.is_fixed(v) or v.rank != 2 or not LEAST <= v.type.numel <= SMALL:
        return 1.0
    if v not in c.shares:
        c.shares[v] = _share(c.data(v)) if _may_be_sparse(c, v.node) else 1.0
    return c.shares[v]


def _share(matrix: np.ndarray) -> float:
    most = (np.count_nonzero(matrix, axis=a).max() / matrix.shape[a] for a in (0, 1))
    share = min(map(float, most))
    return share if share <= SPARSE else 1.0


def _may_be_sparse(c: Classes, node: Node) -> bool:
    if node.prim == "constant":
        return True
    if node.prim == "contract":
        return all(density(c, v) < 1 for v in node.inputs)
    return node.prim in _SHAPED and all(_may_be_sparse(c, v.node) for v in node.inputs)


def product_work(c: Classes, a: Named, b: Named) -> float:
    """Multiplications of a contraction of two."""
    fixed = [x for x in (a, b) if c.is_fixed(x.value)]
    if len(fixed) == 2:
        return 0.0
    return multiplications(a, b) * min((density(c, x.value) for x in fixed), default=1.0)


def conv_work(x: Sequence[int], w: Sequence[int], out: Sequence[int]) -> float:
    """Multiplications of a convolution, by shapes."""
    return float(math.prod(out) * math.prod(w[1:]))
