"""Equations found by search, in the manner of TASO (Jia et al., SOSP 2019).

    python -m fissile.rewrite.generate [DEPTH] > src/fissile/rewrite/rules/found.txt

Terms of up to DEPTH primitives are enumerated and told apart by their values on random whole
numbers. A term of more is made of the cheapest of each value only, so that what follows from a
shorter equation is never seen. Where two terms agree and one is cheaper, an equation is proposed;
it is verified in float64 on many shapes and values, zeros of both signs, equal, negative and
infinite numbers and NaN among them, and in float32 on large and small ones, where it must not lose
what the dearer side keeps; and it is dropped where the rules that are known by then already put
both sides in one class. What is left joins the rules.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, placeholder
from fissile.ir.prims import PRIMS, Kind
from fissile.ir.types import F32, F64, DType, of
from fissile.rewrite.pattern import Binding, Equation, Term, build, example, look, parse, parts
from fissile.rewrite.rule import Rule
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import saturate

VARIABLES = ("x", "y", "z")
NUMBERS = (0.0, 1.0)
UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "softplus")
BINARY = ("add", "sub", "mul", "max", "min", "div")
COMMUTE = ("add", "mul", "max", "min")
WITH_NUMBERS = 2  # primitives of a term
DEPTH = 2  # primitives of a term: of three there are 300 equations more, which no model writes
IDLE = {"add": (0.0,), "sub": (0.0,), "mul": (0.0, 1.0), "div": (0.0, 1.0)}  # folded elsewhere
MARKED = ("reduce_sum.a", "reduce_max.a", "reduce_min.a", "reduce_mean.a", "transpose.p")
MARKED_BINARY = ("contract.m",)
SUMS = ("reduce_sum", "reduce_mean", "contract")
SIDE = 4  # of the matrices that tell terms apart
FINITE = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0)
TRIALS = 60
CLOSE = 1e-10
WORSE = 4.0  # error in float32 over the dearer side's
ULP = 2e-6
Array = np.ndarray


def price(term: Term) -> float:
    """Operations on one element of a small matrix; what a reduction reads is larger than what it
    gives."""
    if not term.prim:
        return 0.0
    row = PRIMS[term.prim]
    own = row.flops if row.kind is Kind.ELEMENTWISE else 1.0
    if term.prim == "contract":
        own = 2.0 * SIDE
    return own + sum(price(a) * (1.0 if not term.mark else 1.2) for a in term.args)


# ---------------------------------------------------------------- terms


def extended(levels: Sequence[Sequence[Term]]) -> list[Term]:
    """The terms of one primitive more. `levels`: those of 0, 1, ... primitives that are worth
    building on."""
    level = list(_unary(levels[-1]))
    for left, lefts in enumerate(levels):
        level += _binary(lefts, levels[len(levels) - 1 - left])
    return list(dict.fromkeys(level))


def _unary(args: Iterable[Term]) -> Iterator[Term]:
    for arg in args:
        if arg.variables:
            yield from (Term(name, args=(arg,)) for name in UNARY)
            yield from (_marked(name, arg) for name in MARKED)


def _marked(name: str, *args: Term) -> Term:
    prim, _, mark = name.partition(".")
    return Term(prim, mark, args)


def _binary(lefts: Sequence[Term], rights: Sequence[Term]) -> Iterator[Term]:
    for a, b in itertools.product(lefts, rights):
        for name in BINARY:
            idle = {a.number, b.number} & set(IDLE.get(name, ()))
            ordered = name not in COMMUTE or str(a) <= str(b)
            if (a.variables or b.variables) and ordered and not idle:
                yield Term(name, args=(a, b))
        if a.variables and b.variables:
            yield from (_marked(name, a, b) for name in MARKED_BINARY)


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
    attrs = {"a": {"axes": (1,)}, "p": {"perm": (1, 0)}, "m": {"spec": "ij,jk->ik"}}
    try:
        with np.errstate(all="ignore"):
            found = PRIMS[term.prim].evaluate(*args, **attrs.get(term.mark, {}))[0]
    except (ValueError, np.exceptions.AxisError):
        return None
    return np.asarray(found)


def _fingerprint(array: Array | None) -> tuple[object, ...] | None:
    """None for values that are mostly no numbers, or that tell nothing: one number everywhere."""
    if array is None:
        return None
    finite = array[np.isfinite(array)]
    if finite.size <= array.size / 2 or np.ptp(finite) <= 1e-12 * np.abs(finite).max():
        return None
    digits = np.array([f"{x:.9g}" for x in array.reshape(-1) + 0.0])
    return (array.shape, digits.tobytes())


def proposals(depth: int, report: Callable[[str], None]) -> list[Equation]:
    """Terms of equal values, the dearer on the left; short ones first."""
    rng = np.random.default_rng(0)
    inputs = {v: rng.integers(-6, 7, (SIDE, SIDE)).astype(np.float64) for v in VARIABLES}
    known: dict[Term, Array | None] = {}
    groups: dict[object, list[Term]] = {}
    levels = [[Term("", name=v) for v in VARIABLES] + [Term("", number=n) for n in NUMBERS]]
    for term in levels[0][: len(VARIABLES)]:
        groups[_fingerprint(inputs[term.name])] = [term]
    for size in range(1, depth + 1):
        level = extended(levels)
        if size > WITH_NUMBERS:
            level = [t for t in level if not t.has_numbers]
        levels.append([])
        for term in level:
            key = _fingerprint(_value(term, inputs, known))
            if key is None:
                continue
            if key not in groups:
                levels[-1].append(term)
            groups.setdefault(key, []).append(term)
        report(f"{len(level)} terms of {size} primitives, {len(levels[-1])} new values")
    found = [e for group in groups.values() for e in _equations(group)]
    return sorted(found, key=_generality)


def _generality(equation: Equation) -> tuple[object, ...]:
    """Few primitives first, variables before numbers."""
    text = str(equation)
    return text.count("("), sum(c.isdigit() for c in text), len(text), text


def _equations(group: Sequence[Term]) -> Iterator[Equation]:
    least = min(group, key=lambda t: (price(t), str(t)))
    for term in group:
        fits = least.variables <= term.variables and least.marks <= term.marks
        if term.prim and fits and _in_order(term) and price(least) <= price(term) - 1:
            yield Equation(term, least)


# ---------------------------------------------------------------- proofs


def holds(equation: Equation) -> bool:
    """On shapes, axes and values of many kinds."""
    return all(_holds(equation, np.random.default_rng(trial)) for trial in range(TRIALS))


def _holds(equation: Equation, rng: np.random.Generator) -> bool:
    graph = _both(equation, rng, F64)
    if graph is None:
        return False
    sums = any(t.prim in SUMS for t in parts(equation.left))  # of infinities there is no algebra
    special = rng.choice([*FINITE, *(() if sums else (math.inf, -math.inf, math.nan))], 6)
    plain = rng.integers(3)
    feeds = [
        rng.standard_normal(v.shape) * 3 if plain else rng.choice(special, v.shape)
        for v in graph.inputs
    ]
    with np.errstate(all="ignore"):
        old, new = evaluate(graph, feeds, reference=True)
    scale = float(np.abs(np.nan_to_num(old, posinf=0, neginf=0)).max(initial=1.0))
    if old.shape != new.shape or not np.allclose(
        new, old, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True
    ):
        return False
    zero = (old == 0) & (new == 0)  # of the same sign: (x + k) - k may be there to round x
    same = ~zero | (np.signbit(old) == np.signbit(new))
    return (sums or bool(np.all(same))) and _keeps(equation, rng)


def _keeps(equation: Equation, rng: np.random.Generator) -> bool:
    """In float32, the cheaper side is no worse: on numbers from 1e-4 to 1e4, where digits get lost,
    and from 1e-30 to 1e30, where products overflow that quotients did not."""
    graph = _both(equation, rng, F32)
    if graph is None or graph.outputs[0].type != graph.outputs[1].type:
        return False
    sums = any(t.prim in SUMS for t in parts(equation.left))
    most = 4.0 if sums else rng.choice([4.0, 30.0])  # sums of products overflow either way
    feeds = [
        (rng.choice([-1.0, 1.0], v.shape) * 10 ** rng.uniform(-most, most, v.shape)).astype(
            np.float32
        )
        for v in graph.inputs
    ]
    right, _ = evaluate(graph, feeds, reference=True)
    old, new = (a.astype(np.float64) for a in evaluate(graph, feeds))
    with np.errstate(all="ignore"):
        lost, own, size = np.abs(new - right), np.abs(old - right), np.abs(right)
        if sums:  # terms cancel here and there
            own, size = (np.full_like(a, a.max()) for a in (own, np.abs(right)))
        bound = WORSE * own + ULP * size + 1e-30
        return bool(np.all((lost <= bound) | ~np.isfinite(right) | ~np.isfinite(old)))


def _both(equation: Equation, rng: np.random.Generator, dtype: DType = F32) -> Graph | None:
    """A graph that gives both sides."""
    n, k = (int(s) for s in rng.integers(1, 5, 2))
    values = {v: placeholder(of((n, k, k), dtype)) for v in sorted(equation.left.variables)}
    axes = tuple(sorted({int(a) for a in rng.integers(0, 3, 2)}))
    attrs = {
        "a": {"axes": axes},
        "p": {"perm": tuple(int(p) for p in rng.permutation(3))},
        "m": {"spec": "bij,bjk->bik"},
    }
    binding = Binding(values, attrs)
    try:
        both = [
            build(t, binding, next(iter(values.values()))) for t in (equation.left, equation.right)
        ]
    except ValueError:
        return None
    inputs = tuple(values.values())
    return Graph(inputs, tuple(both), tuple(values), ("old", "new"))


def is_instance(equation: Equation) -> bool:
    """Does it also hold with a variable in place of some term that both sides have?"""
    shared = {t for t in parts(equation.left) if t.prim} & set(parts(equation.right))
    shared -= {equation.left, equation.right}
    free = next(v for v in "uvw" if v not in equation.left.variables)
    general = (
        Equation(*(_replaced(side, t, free) for side in (equation.left, equation.right)))
        for t in shared
    )
    return any(e.right.variables <= e.left.variables and holds(e) for e in general)


def _replaced(term: Term, old: Term, name: str) -> Term:
    if term == old:
        return Term("", name=name)
    return replace(term, args=tuple(_replaced(a, old, name) for a in term.args))


def is_order(equation: Equation) -> bool:
    """Does it say which of two is the larger? Of long ones there are hundreds, of no use."""
    return equation.left.prim in ("max", "min") and equation.right in equation.left.args


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


def search(report: Callable[[str], None], depth: int = DEPTH) -> list[Equation]:
    """What the rules by hand lack."""
    rules = [r for r in RULES.values() if r.source != "search"]
    proposed = proposals(depth, report)
    report(f"{len(proposed)} equations proposed")
    found: list[Equation] = []
    for i, equation in enumerate(proposed):
        if i % 500 == 499:
            report(f"{i + 1} looked at, {len(found)} found")
        long = sum(bool(t.prim) for t in parts(equation.left)) > WITH_NUMBERS
        if long and (is_order(equation) or is_instance(equation)):
            continue
        if holds(equation) and not implied(equation, rules):
            found.append(equation)
            rules.append(as_rule(equation))
    return found


def main() -> None:
    depth = int(sys.argv[1]) if len(sys.argv) > 1 else DEPTH
    found = search(lambda line: print(line, file=sys.stderr, flush=True), depth)
    print("# Written by `python -m fissile.rewrite.generate`.")
    for equation in found:
        assert str(parse(str(equation))) == str(equation)
        print(equation)


if __name__ == "__main__":
    main()
