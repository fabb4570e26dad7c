"""Equations as text: max(x, y) + min(x, y) = x + y is `add(max(x, y), min(x, y)) = add(x, y)`.

Names of one letter are values of any shape, all alike or broadcasting; numbers are constants of one
element. A primitive with attributes (a reduction, a transpose) stands for any attributes, the same
ones wherever it has the same mark: `reduce_sum.a(neg(x)) = neg(reduce_sum.a(x))`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fissile.ir.graph import Node, Value
from fissile.ir.prims import PRIMS, constant, make
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, Look

ENOUGH = 64  # bindings of one pattern at one node


@dataclass(frozen=True)
class Term:
    """A primitive on terms, or, without a primitive, a variable or a number."""

    prim: str
    mark: str = ""
    args: tuple[Term, ...] = ()
    name: str = ""
    number: float | None = None

    def __str__(self) -> str:
        if not self.prim:
            return self.name or f"{self.number:g}"
        mark = f".{self.mark}" if self.mark else ""
        return f"{self.prim}{mark}({', '.join(map(str, self.args))})"

    @property
    def variables(self) -> frozenset[str]:
        own = frozenset({self.name} if self.name else ())
        return own.union(*(a.variables for a in self.args))

    @property
    def has_numbers(self) -> bool:
        return self.number is not None or any(a.has_numbers for a in self.args)

    @property
    def marks(self) -> frozenset[str]:
        own = frozenset({self.mark} if self.mark else ())
        return own.union(*(a.marks for a in self.args))


@dataclass(frozen=True)
class Equation:
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


_TOKEN = re.compile(r"\s*([a-z_][a-z_0-9]*(?:\.[a-z])?|-?\d+(?:\.\d+)?|[(),=])")


def parse(line: str) -> Equation:
    """Raises ValueError with the place of the fault."""
    tokens = _TOKEN.findall(line)
    if "".join(tokens) != re.sub(r"\s", "", line):
        raise ValueError(f"{line!r} is no equation")
    reader = iter([*tokens, ""])
    left, stop = _term(reader, next(reader))
    if stop != "=":
        raise ValueError(f"{line!r}: expected '=', found {stop!r}")
    right, stop = _term(reader, next(reader))
    if stop:
        raise ValueError(f"{line!r}: {stop!r} after the equation")
    if not right.variables <= left.variables or not right.marks <= left.marks:
        raise ValueError(f"{line!r}: the right side has names that the left side lacks")
    return Equation(left, right)


def _term(reader: Iterator[str], token: str) -> tuple[Term, str]:
    """A term, and the token behind it."""
    stop = next(reader)
    if re.fullmatch(r"-?\d.*", token):
        return Term("", number=float(token)), stop
    if stop != "(":
        if len(token) != 1:
            raise ValueError(f"{token!r} is no variable")
        return Term("", name=token), stop
    prim, _, mark = token.partition(".")
    if prim not in PRIMS:
        raise ValueError(f"{prim!r} is no primitive")
    args: list[Term] = []
    while stop != ")":
        arg, stop = _term(reader, next(reader))
        args.append(arg)
    return Term(prim, mark, tuple(args)), next(reader)


# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class Binding:
    """What variables and marks stand for."""

    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def build(term: Term, binding: Binding, like: Value) -> Value:
    """The value of a term. Raises ValueError where types do not fit. `like`: of whose element type
    numbers are."""
    if term.number is not None:
        return constant(term.number, like.type.dtype)
    if not term.prim:
        return binding.values[term.name]
    args = [build(a, binding, like) for a in term.args]
    return make(term.prim, args, **(binding.attrs[term.mark] if term.mark else {}))[0]


def matches(c: Classes, term: Term, node: Node, binding: Binding) -> Iterator[Binding]:
    """The ways to see a term in a node."""
    if term.mark:
        known = binding.attrs.get(term.mark)
        if known is not None and known != node.attrs:
            return
        binding = Binding(binding.values, {**binding.attrs, term.mark: node.attrs})
    elif node.attrs:
        return
    found = [binding]
    for arg, value in zip(term.args, node.inputs, strict=True):
        found = [b for a in found for b in _bound(c, arg, value, a)][:ENOUGH]
    yield from found


def _bound(c: Classes, term: Term, value: Value, binding: Binding) -> Iterator[Binding]:
    if term.number is not None:
        if (
            value.type.numel == 1
            and c.is_fixed(value)
            and float(c.data(value).reshape(())) == term.number
        ):
            yield binding
    elif not term.prim:
        known = binding.values.get(term.name)
        if known is None:
            yield Binding({**binding.values, term.name: value}, binding.attrs)
        elif c.same(known, value):
            yield binding
    else:
        for node in c.members(value, term.prim):
            yield from matches(c, term, node, binding)


def look(equation: Equation) -> Look:
    """The rule that an equation is, from left to right."""

    def found(c: Classes, node: Node) -> Found:
        for binding in matches(c, equation.left, node, Binding()):
            try:
                value = build(equation.right, binding, node.value)
            except ValueError:
                continue
            if value.type == node.value.type:
                yield value

    return found


def example(equation: Equation) -> Any:
    """Draws a value of the left side: variables of one shape, or some that broadcast."""

    def drawn(d: Draw) -> Value:
        shape = d.extents(3, 2, 4)
        values: dict[str, Value] = {}
        for name in sorted(equation.left.variables):
            narrow = bool(values) and not equation.left.marks and d.any((True, False))
            values[name] = d.value(*(1 if narrow and d.any((0, 1)) else s for s in shape))
        attrs = {m: _attrs(d, equation.left, m, len(shape)) for m in equation.left.marks}
        return build(equation.left, Binding(values, attrs), next(iter(values.values())))

    return drawn


def _attrs(d: Draw, term: Term, mark: str, rank: int) -> Mapping[str, Any]:
    prim = next(t.prim for t in parts(term) if t.mark == mark)
    return {"perm": d.permutation(rank)} if prim == "transpose" else {"axes": (d.any((0, 1, 2)),)}


def parts(term: Term) -> Iterator[Term]:
    """The term and all below it."""
    yield term
    for a in term.args:
        yield from parts(a)
