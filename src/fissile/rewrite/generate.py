"""Equations found by search, in the manner of TASO (Jia et al., SOSP 2019).

    python -m fissile.rewrite.generate > src/fissile/rewrite/rules/found.txt

All terms of up to three primitives are enumerated and told apart by their values on random whole
numbers. Where two agree and one is cheaper, an equation is proposed; it is verified in float64 on
many shapes and values, zeros, equal and negative numbers among them; and dropped where the rules
that are known by then already put both sides in one class. What is left joins the rules.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, placeholder
from fissile.ir.prims import PRIMS, Kind
from fissile.ir.types import F64, of
from fissile.rewrite.pattern import Binding, Equation, Term, build, example, look, parse
from fissile.rewrite.rule import Rule
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import saturate

VARIABLES = ("x", "y", "z")
UNARY = ("neg", "abs", "exp", "sqrt", "sigmoid", "tanh", "reciprocal", "sign")
BINARY = ("add", "sub", "mul", "max", "min", "div")
COMMUTE = ("add", "mul", "max", "min")
MARKED = ("reduce_sum.a", "reduce_max.a", "reduce_mean.a", "transpose.p")
SHAPE = (3, 4)  # of the values that tell terms apart
TRIALS = 24
CLOSE = 1e-10
Array = np.ndarray


def price(term: Term) -> float:
    """Operations on one element, a reduction's halved: what it gives is smaller."""
    if not term.prim:
        return 0.0
    row = PRIMS[term.prim]
    own = row.flops if row.kind is Kind.ELEMENTWISE else 1.0
    return own + sum(price(a) * (1.0 if not term.mark else 1.2) for a in term.args)


# ---------------------------------------------------------------- terms


def terms(depth: int = 3) -> Iterator[list[Term]]:
    """Terms of 0, 1, ... primitives. Variables come in the order of their names."""
    levels: list[list[Term]] = [[Term("", name=v) for v in VARIABLES]]
    levels[0] += [Term("", number=n) for n in (0.0, 1.0)]
    yield levels[0]
    for size in range(1, depth + 1):
        level = list(_unary(levels[size - 1]))
        for left in range(size):
            level += _binary(levels[left], levels[size - 1 - left])
        level = [t for t in dict.fromkeys(level) if _in_order(t)]
        levels.append(level)
        yield level


def _unary(args: Iterable[Term]) -> Iterator[Term]:
    for arg in args:
        if not arg.variables:
            continue
        for name in UNARY:
            yield Term(name, args=(arg,))
        for marked in MARKED:
            prim, _, mark = marked.partition(".")
            yield Term(prim, mark, (arg,))


def _binary(lefts: Sequence[Term], rights: Sequence[Term]) -> Iterator[Term]:
    for a, b in itertools.product(lefts, rights):
        if a.variables or b.variables:
            for name in BINARY:
                if name not in COMMUTE or str(a) <= str(b):
                    yield Term(name, args=(a, b))


def _in_order(term: Term) -> bool:
    """The first variable is x, the next new one y."""
    seen = list(dict.fromkeys(c for c in _names(term)))
    return seen == list(VARIABLES[: len(seen)])


def _names(term: Term) -> Iterator[str]:
    if term.name:
        yield term.name
    for a in term.args:
        yield from _names(a)


# ---------------------------------------------------------------- values


def _value(term: Term, inputs: dict[str, Array], known: dict[Term, Array | None]) -> Array | None:
    """Of a term; None where shapes do not fit."""
    if term not in known:
        known[term] = _computed(term, inputs, known)
    return known[term]


def _computed(
    term: Term, inputs: dict[str, Array], known: dict[Term, Array | None]
) -> Array | None:
    if term.number is not None:
        return np.asarray(term.number, np.float64)
    if term.name:
        return inputs[term.name]
    args = [_value(a, inputs, known) for a in term.args]
    if any(a is None for a in args):
        return None
    attrs = {"a": {"axes": (1,)}, "p": {"perm": (1, 0)}}.get(term.mark, {})
    try:
        with np.errstate(all="ignore"):
            return np.asarray(PRIMS[term.prim].evaluate(*args, **attrs)[0])
    except (ValueError, np.exceptions.AxisError):
        return None


def proposals(report: Callable[[str], None]) -> list[Equation]:
    """Terms of equal values, the dearer on the left; short ones first."""
    rng = np.random.default_rng(0)
    inputs = {v: rng.integers(-6, 7, SHAPE).astype(np.float64) for v in VARIABLES}
    known: dict[Term, Array | None] = {}
    groups: dict[object, list[Term]] = {}
    for size, level in enumerate(terms()):
        for term in level:
            array = _value(term, inputs, known)
            if array is None or not np.isfinite(array).mean() > 0.5:
                continue
            digits = np.round(array, 9) + 0.0
            groups.setdefault((array.shape, digits.tobytes()), []).append(term)
        report(f"{len(level)} terms of {size} primitives, {len(groups)} values")
    found: list[Equation] = []
    for group in groups.values():
        least = min(group, key=lambda t: (price(t), str(t)))
        for term in group:
            fits = least.variables <= term.variables and least.marks <= term.marks
            if term.prim and fits and price(least) < price(term) - 1e-9:
                found.append(Equation(term, least))
    return sorted(found, key=lambda e: (len(str(e.left)), str(e)))


# ---------------------------------------------------------------- proofs


def holds(equation: Equation) -> bool:
    """In float64, on shapes, axes and values of many kinds."""
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        graph = _both(equation, rng)
        if graph is None:
            return False
        special = rng.choice([0.0, -0.0, 1.0, -1.0, 0.5, 3.0], 6)
        feeds = [
            rng.choice(special, v.shape) if trial % 3 == 0 else rng.standard_normal(v.shape) * 3
            for v in graph.inputs
        ]
        old, new = evaluate(graph, feeds, reference=True)
        scale = float(np.abs(np.nan_to_num(old, posinf=0, neginf=0)).max(initial=1.0))
        if old.shape != new.shape or not np.allclose(
            new, old, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True
        ):
            return False
    return True


def _both(equation: Equation, rng: np.random.Generator) -> Graph | None:
    """A graph that gives both sides."""
    shape = tuple(int(s) for s in rng.integers(1, 5, 3))
    values = {v: placeholder(of(shape, F64)) for v in sorted(equation.left.variables)}
    axes = tuple(sorted({int(a) for a in rng.integers(0, 3, 2)}))
    attrs = {"a": {"axes": axes}, "p": {"perm": tuple(int(p) for p in rng.permutation(3))}}
    binding = Binding(values, attrs)
    try:
        both = [
            build(t, binding, next(iter(values.values()))) for t in (equation.left, equation.right)
        ]
    except ValueError:
        return None
    inputs = tuple(values.values())
    return Graph(inputs, tuple(both), tuple(values), ("old", "new"))


def implied(equation: Equation, rules: Sequence[Rule]) -> bool:
    """Do the rules put both sides in one class?"""
    graph = _both(equation, np.random.default_rng(7))
    if graph is None:
        return True
    found = saturate(graph, rules, nodes=400, seconds=2.0)
    old, new = (found.classes.find(v) for v in graph.outputs)
    return old is new


def as_rule(equation: Equation) -> Rule:
    left = equation.left.prim
    return Rule(str(equation), (left,), look(equation), example(equation), "search")


def search(report: Callable[[str], None]) -> list[Equation]:
    """What the rules by hand lack."""
    rules = [r for r in RULES.values() if r.source != "search"]
    proposed = proposals(report)
    report(f"{len(proposed)} equations proposed")
    found: list[Equation] = []
    for i, equation in enumerate(proposed):
        if i % 500 == 499:
            report(f"{i + 1} looked at, {len(found)} found")
        if holds(equation) and not implied(equation, rules):
            found.append(equation)
            rules.append(as_rule(equation))
    return found


def main() -> None:
    found = search(lambda line: print(line, file=sys.stderr, flush=True))
    print("# Written by `python -m fissile.rewrite.generate`.")
    for equation in found:
        assert str(parse(str(equation))) == str(equation)
        print(equation)


if __name__ == "__main__":
    main()
