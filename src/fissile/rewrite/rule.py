"""Rules: an equation, a guard that refuses with a reason, an example.          (design, section 5)

    @rule("(x v) w = x (v w)", "contract", example=..., source="associativity")
    def reassociate(c, node): ...

A rule looks at one node and at the members of its operands' classes, and yields values that equal
the node's; or a `No`, which is what `fissile inspect --stage rewrites` shows of what was refused.
The example is drawn at random: one property test proves every rule on many of them in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fissile.ir.graph import Node, Value, placeholder
from fissile.ir.prims import constant
from fissile.ir.types import F32, F64, DType, of
from fissile.rewrite.classes import Classes

T = TypeVar("T")
ROUNDED = (F32, F64)  # where an equation of real numbers may change the rounding


@dataclass(frozen=True)
class No:
    """A refusal with its reason."""

    reason: str


Found = Iterator[Value | No]
Look = Callable[[Classes, Node], Found]


class Draw:
    """Random shapes and values for examples."""

    def __init__(self, seed: int, dtype: DType = F32):
        self.rng, self.dtype = np.random.default_rng(seed), dtype

    def extent(self, least: int = 1, most: int = 5) -> int:
        return int(self.rng.integers(least, most + 1))

    def extents(self, count: int, least: int = 1, most: int = 5) -> tuple[int, ...]:
        return tuple(self.extent(least, most) for _ in range(count))

    def any(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def permutation(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in self.rng.permutation(rank))

    def value(self, *shape: int) -> Value:
        """An input of the graph."""
        return placeholder(of(shape, self.dtype))

    def weights(self, *shape: int) -> Value:
        """A constant."""
        if self.dtype.is_integer:
            return constant(self.rng.integers(-4, 5, shape), self.dtype)
        return constant(self.rng.standard_normal(shape), self.dtype)


@dataclass(frozen=True)
class Rule:
    """exact: no float is rounded differently. integers: holds for them too, wrapping around.
    always: what is found is cheaper whatever is around it. replaces: so much so that the node is
    forgotten. ours: pays in our kernels only, not where a runtime executes operators."""

    equation: str
    prims: tuple[str, ...]
    look: Look
    example: Callable[[Draw], Value]
    source: str
    exact: bool = False
    integers: bool = False
    always: bool = False
    replaces: bool = False
    ours: bool = False

    def fits(self, node: Node, exact: bool = False) -> bool:
        """May it be used on this node? `exact`: only where no float is rounded differently."""
        types = {v.type.dtype for v in (*node.inputs, *node.outputs)}
        if self.exact:
            return True
        if any(t.is_float for t in types):
            return not exact and all(t in ROUNDED for t in types if t.is_float)
        return self.integers and all(t.is_integer for t in types)


RULES: dict[str, Rule] = {}


def rule(
    equation: str, *prims: str, example: Callable[[Draw], Value], source: str,
    exact: bool = False, integers: bool = False, always: bool = False, replaces: bool = False,
    ours: bool = False,
) -> Callable[[Look], Look]:  # fmt: skip
    """Enter a function into the table."""

    def register(look: Look) -> Look:
        if equation in RULES:
            raise ValueError(f"two rules are called {equation!r}")
        RULES[equation] = Rule(
            equation,
            prims,
            look,
            example,
            source,
            exact,
            integers,
            always or replaces,
            replaces,
            ours,
        )
        return look

    return register
