"""Views: layout primitives as maps between the axes of what they read and of what they give.

A reshape splits the axes of both sides into the shortest runs of equal size, its *groups*:
[2, 12, 5] -> [2, 3, 4, 5] is (0 -> 0), (1 -> 1 2), (2 -> 3). A transpose is one group for each
axis. So what another operand of an elementwise primitive, or of a contraction, looks like on the
other side of a view follows group by group, whichever way an exporter has spelt it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.graph import Node, Value
from fissile.ir.prims import broadcast, reshape, transpose
from fissile.ir.types import TensorType

SPREAD = 1 << 16  # elements up to which a constant is broadcast to pass a view


@dataclass(frozen=True)
class Group:
    """Axes of one side and of the other that hold the same elements in the same order. Axes of
    extent 1 stand in no group."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def groups(before: Sequence[int], after: Sequence[int]) -> tuple[Group, ...]:
    """The groups of a reshape between two shapes of equal size. Shapes without elements have
    none that say anything: they are one group."""
    left = [a for a, s in enumerate(before) if s != 1]
    right = [a for a, s in enumerate(after) if s != 1]
    if 0 in before:
        return (Group(tuple(left), tuple(right)),)
    found: list[Group] = []
    i = j = 0
    while i < len(left):
        one, two = [left[i]], [right[j]]
        m, n = before[left[i]], after[right[j]]
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m, i = m * before[left[i]], i + 1
                one.append(left[i - 1])
            else:
                n, j = n * after[right[j]], j + 1
                two.append(right[j - 1])
        found.append(Group(tuple(one), tuple(two)))
    return tuple(found)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(perm.index(a) for a in range(len(perm)))


def padded(v: Value, rank: int) -> Value:
    """With leading axes of extent 1, so that broadcasting goes axis by axis."""
    return reshape(v, (1,) * (rank - v.rank) + v.shape)


def carried(view: Node, v: Value, back: bool = False) -> Value | None:
    """What an operand that broadcasts against what a view reads looks like against what it gives;
    `back`: the other way round. None where it would not broadcast any more, and is too large to be
    broadcast before."""
    (x,), y = view.inputs, view.value
    if v.type.numel == 1 and v.rank <= 1:
        return v
    one, two = (y, x) if back else (x, y)
    v = padded(v, one.rank)
    if view.prim == "transpose":
        perm = view.attrs["perm"]
        return transpose(v, inverse(perm) if back else perm)
    if view.prim != "reshape":
        return None
    shape = [1] * two.rank
    spread = list(v.shape)
    for group in groups(one.shape, two.shape):
        extents = [v.shape[a] for a in group.before]
        if all(e == 1 for e in extents):
            continue
        for a in group.before:
            spread[a] = one.shape[a]
        for a in group.after:
            shape[a] = two.shape[a]
    if tuple(spread) != v.shape:
        if not v.is_constant or math.prod(spread) > SPREAD:
            return None
        v = broadcast(v, spread)
    return reshape(v, shape)


def seen_as(view: Node, x: Value) -> Value | None:
    """The same view of another value of the same shape; None where there is none."""
    if x.shape != view.inputs[0].shape:
        return None
    if view.prim == "transpose":
        return transpose(x, view.attrs["perm"])
    return reshape(x, view.attrs["shape"])


def extents(t: TensorType, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(t.shape[a] for a in axes)
