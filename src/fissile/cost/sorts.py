"""Sorts of kernels: what a kernel has in common with others that errs in the same way.

A candidate belongs to a chain of sorts, each finer than the one before:

    implementation > what it computes > how it walks through memory > how large it is

so that a model can trust the finest sort of which it has seen enough. Every sort is a short text:
the name in a table of learned ratios.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fissile.ir.graph import Node
from fissile.ir.layout import Token
from fissile.ir.prims import Kind, kind
from fissile.ir.semantics import split_spec
from fissile.kernels.candidate import Candidate
from fissile.kernels.statistics import without_statistics

Sort = str


def sorts(candidate: Candidate, modelled_us: float) -> tuple[Sort, ...]:
    """The chain, coarsest first. A kernel that takes statistics besides is of the same sort as the
    one that it extends."""
    extends = candidate.computed_by != candidate.impl
    nodes = without_statistics(candidate.region) if extends else candidate.region.nodes
    impl = "adapter" if candidate.is_adapter else candidate.computed_by
    saving = f"/{candidate.saving:.2g}" if candidate.saving != 1.0 else ""
    steps = [
        f"{impl}{saving}",
        _work(nodes),
        _walk(nodes, candidate.needs, candidate.gives[: 1 if extends else None]),
        _variant(candidate),
    ]
    size = round(math.log2(max(modelled_us, 0.5)) / 2)
    maps = sum(kind(n) is Kind.ELEMENTWISE for n in nodes)
    steps.append(f"size {size} maps {min(maps, 7) // 2}")
    chain = [steps[0]]
    for step in steps[1:]:
        if step:
            chain.append(f"{chain[-1]}; {step}")
    return tuple(chain)


def _work(nodes: Sequence[Node]) -> str:
    """The primitives that decide how a kernel runs; those that move elements where nothing else
    does."""
    linear = [_linear(n) for n in nodes if kind(n) is Kind.LINEAR]
    if linear:
        return " ".join(linear[:4])
    sums = Counter(n.prim for n in nodes if kind(n) in (Kind.REDUCE, Kind.WINDOW, Kind.OPAQUE))
    if sums:
        return " ".join(
            f"{prim}{count if count > 1 else ''}" for prim, count in sorted(sums.items())
        )
    moves = sorted({n.prim for n in nodes if kind(n) in (Kind.LAYOUT, Kind.BROADCAST)})
    return " ".join(moves) or "elementwise"


def _linear(node: Node) -> str:
    """Kind of product, and which of its extents are small."""
    if node.prim == "contract":
        left, right, out = split_spec(node.attrs["spec"])
        a, b = (
            dict(zip(ls, v.shape, strict=True))
            for ls, v in zip((left, right), node.inputs, strict=True)
        )
        summed = math.prod(s for x, s in {**a, **b}.items() if x not in out)
        columns = math.prod(b[x] for x in right if x in out and x not in left)
        rows = math.prod(a[x] for x in left if x in out and x not in right)
        return f"contract k{_bucket(summed)} n{_bucket(min(rows, columns))}"
    groups, (channels, depth) = node.attrs["groups"], node.inputs[1].shape[:2]
    taps = math.prod(node.inputs[1].shape[2:])
    if depth == 1 and groups > 1:
        return f"depthwise{taps} step{max(node.attrs['strides'])}"
    form = f"conv{taps} step{max(node.attrs['strides'])}" if taps > 1 else "conv1"
    return f"{form} k{_bucket(depth)} n{_bucket(channels // groups)}"


def _bucket(extent: int) -> str:
    """Less than a vector, some vectors, many."""
    return "1" if extent < 4 else "4" if extent < 16 else "16" if extent < 64 else "64"


def _walk(nodes: Sequence[Node], needs: Sequence[Token], gives: Sequence[Token]) -> str:
    """Do the innermost axes of the largest need and the largest give agree, is anything taken out
    of another place, and how often is a value given?"""
    layouts = {t.layout.is_row_major for t in (*needs, *gives)}
    words = ["mixed" if len(layouts) > 1 else "first" if layouts == {True} else "last"]
    moves = {n.prim for n in nodes if kind(n) is Kind.LAYOUT}
    words += [word for word in ("transpose", "slice", "gather", "pad") if word in moves]
    if len(gives) > 1:
        words.append("gives2")
    return " ".join(words)


def _variant(candidate: Candidate) -> str:
    named = [(k, v) for k, v in candidate.params if k != "by" and isinstance(v, (int, str))]
    return " ".join(f"{k}={v}" for k, v in named)[:60]
