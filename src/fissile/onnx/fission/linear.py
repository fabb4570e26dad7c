"""Matrix products and einsum as contractions; broadcasts are never materialised."""

from __future__ import annotations

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import contract, reduce_sum, reshape, transpose
from fissile.onnx.fission.reduction import without
from fissile.onnx.rule import fission

# k, m and n keep their meaning
_LETTERS = "abcdefghijlopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@fission("MatMul")
def matmul(a, b):
    """a: [batch..., m, k], b: [batch..., k, n]; vectors as numpy has them."""
    if not a.rank or not b.rank:
        raise ModelError("a scalar is no matrix")
    if b.rank <= 2:
        left, column = _LETTERS[: a.rank - 1], "n" if b.rank == 2 else ""
        return contract(a, b, f"{left}k,k{column}->{left}{column}")
    lead = _LETTERS[: max(a.rank, b.rank) - 2]
    row = "m" if a.rank > 1 else ""
    left = lead[len(lead) - max(a.rank - 2, 0) :] + row + "k"
    right = lead[len(lead) - b.rank + 2 :] + "kn"
    return joined(a, b, left, right, lead + row + "n")


def joined(a: Value, b: Value, left: str, right: str, out: str) -> Value:
    """A contraction whose equally named axes may also broadcast from extent 1."""
    extents = {}
    for labels, v in ((left, a), (right, b)):
        for label, extent in zip(labels, v.shape, strict=True):
            extents[label] = extent if extents.get(label, 1) == 1 else extents[label]
    a, left = _unbroadcast(a, left, extents)
    b, right = _unbroadcast(b, right, extents)
    kept = [label for label in out if label in left or label in right]
    y = contract(a, b, f"{left},{right}->{''.join(kept)}")
    return reshape(y, [extents[label] for label in out])


def _unbroadcast(x: Value, labels: str, extents: dict[str, int]) -> tuple[Value, str]:
    """Drops the axes along which x broadcasts."""
    drop = tuple(a for a, c in enumerate(labels) if x.shape[a] == 1 and extents[c] != 1)
    return without(x, drop), "".join(c for a, c in enumerate(labels) if a not in drop)


@fission("Gemm")
def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    """alpha a b + beta c; a scale joins a constant operand where there is one."""
    if alpha != 1:
        a, b = (a, b * alpha) if b.is_constant else (a * alpha, b)
    y = contract(a, b, f"{'km' if transA else 'mk'},{'nk' if transB else 'kn'}->mn")
    if c is None or beta == 0:
        return y
    return y + (c if beta == 1 else c * beta)


@fission("Einsum")
def einsum(*xs, equation):
    operands, out = _parsed(equation.replace(" ", ""), [x.rank for x in xs])
    terms = [_diagonal_free(x, labels) for x, labels in zip(xs, operands, strict=True)]
    while len(terms) > 1:
        (a, left), (b, right), *rest = terms
        later = set(out).union(*(labels for _, labels in rest))
        middle = "".join(c for c in dict.fromkeys(left + right) if c in later) if rest else out
        terms = [(joined(a, b, left, right, middle), middle), *rest]
    ((x, labels),) = terms
    summed = tuple(a for a, c in enumerate(labels) if c not in out)
    x = without(reduce_sum(x, summed), summed) if summed else x
    labels = "".join(c for c in labels if c in out)
    return transpose(x, [labels.index(c) for c in out])


def _diagonal_free(x: Value, labels: str) -> tuple[Value, str]:
    if len(set(labels)) < len(labels):
        raise ModelError(f"the repeated label in {labels!r} is not supported")
    return x, labels


def _parsed(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Labels per operand and of the result, ellipses spelt out with letters of their own."""
    left, arrow, out = equation.partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        raise ModelError(f"the equation has {len(operands)} operands, not {len(ranks)}")
    depths = [
        rank - len(labels.replace("...", "")) for labels, rank in zip(operands, ranks, strict=True)
    ]
    if any(
        d < 0 or (d and "..." not in labels) for d, labels in zip(depths, operands, strict=True)
    ):
        raise ModelError(f"the equation {equation!r} does not fit operands of rank {ranks}")
    free = [c for c in _LETTERS + "kmn" if c not in equation]
    dots = "".join(free[: max(depths)])
    spelt = [
        labels.replace("...", dots[len(dots) - depth :])
        for labels, depth in zip(operands, depths, strict=True)
    ]
    if not arrow:
        every = left.replace(",", "").replace(".", "")
        out = "..." + "".join(sorted(c for c in set(every) if every.count(c) == 1))
    return spelt, out.replace("...", dots)
