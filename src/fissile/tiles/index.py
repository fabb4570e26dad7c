"""Integer index expressions with ranges: where an element of a value lies, as a function of loop variables.

An `Index` is  sum coefficient * atom + constant.  An atom is a loop variable, or a floor division,
remainder, reflection, clamp or table look-up of another index. Every construction simplifies by the
ranges of the variables, so that splits, merges and pads of axes leave plain sums where loops are chosen to
fit them. What stays unresolved is still correct, and printed as C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Var:
    """A loop variable with values lo .. hi, both included."""

    name: str
    lo: int
    hi: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.lo, self.hi))

    @cached_property
    def order(self) -> str:
        """Sorts atoms."""
        return repr(self)

    @property
    def extent(self) -> int:
        return self.hi - self.lo + 1


@dataclass(frozen=True)
class Fn:
    """A function of indices that is no sum: div, mod, reflect, clamp, table."""

    name: str
    args: tuple[Index, ...]
    params: tuple[int | str, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.args, self.params))

    @cached_property
    def order(self) -> str:
        """Sorts atoms."""
        return repr(self)

    @cached_property
    def lo(self) -> int:
        return self._range()[0]

    @cached_property
    def hi(self) -> int:
        return self._range()[1]

    def _range(self) -> tuple[int, int]:
        if self.name == "div":
            return self.args[0].lo // int(self.params[0]), self.args[0].hi // int(self.params[0])
        if self.name == "mod":
            return 0, int(self.params[0]) - 1
        if self.name == "reflect":
            return 0, int(self.params[0]) - 1
        if self.name == "clamp":
            lo, hi = int(self.params[0]), int(self.params[1])
            return max(lo, min(hi, self.args[0].lo)), max(lo, min(hi, self.args[0].hi))
        return 0, int(self.params[1]) - 1  # table


@dataclass(frozen=True)
class Index:
    terms: tuple[tuple[Var | Fn, int], ...]  # sorted, no zero coefficient
    constant: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.constant))

    @cached_property
    def lo(self) -> int:
        return self.constant + sum(c * (a.lo if c > 0 else a.hi) for a, c in self.terms)

    @cached_property
    def hi(self) -> int:
        return self.constant + sum(c * (a.hi if c > 0 else a.lo) for a, c in self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms or not self.terms:  # nothing to bring together
            return Index(self.terms or other.terms, self.constant + other.constant)
        return _sum([*self.terms, *other.terms], self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        terms = tuple((a, c * factor) for a, c in self.terms) if factor else ()
        return Index(terms, self.constant * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def is_affine(self) -> bool:
        return all(isinstance(a, Var) for a, _ in self.terms)

    def coefficient(self, var: Var) -> int:
        return next((c for a, c in self.terms if a == var), 0)

    @cached_property
    def vars(self) -> frozenset[Var]:
        found: set[Var] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                found.add(atom)
            else:
                for arg in atom.args:
                    found |= arg.vars
        return frozenset(found)

    def depends_nonlinearly(self, var: Var) -> bool:
        return any(isinstance(a, Fn) and any(var in i.vars for i in a.args) for a, _ in self.terms)


def _sum(terms: Iterable[tuple[Var | Fn, int]], constant: int) -> Index:
    total: dict[Var | Fn, int] = {}
    for atom, c in terms:
        total[atom] = total.get(atom, 0) + c
    if any(isinstance(a, Fn) for a in total):
        constant += _recombine(total)
    kept = [(a, c) for a, c in total.items() if c]
    for atom, c in kept:
        if atom.lo == atom.hi:
            constant += c * atom.lo
    kept = [(a, c) for a, c in kept if a.lo != a.hi]
    if len(kept) > 1:
        kept.sort(key=lambda t: (-abs(t[1]), t[0].order))
    return Index(tuple(kept), constant)


def _recombine(total: dict[Var | Fn, int]) -> int:
    """b (e // b) + e % b = e, in place; the constant that this adds."""
    added = 0
    while True:
        for atom, c in total.items():
            if not (c and isinstance(atom, Fn) and atom.name == "mod"):
                continue
            e, b = atom.args[0], int(atom.params[0])
            quotient = floordiv(e, b).terms
            if len(quotient) == 1 and total.get(quotient[0][0], 0) == c * b * quotient[0][1]:
                break
        else:
            return added
        total[atom] = total[quotient[0][0]] = 0
        for inner, k in e.terms:
            total[inner] = total.get(inner, 0) + c * k
        added += c * e.constant


def const(value: int) -> Index:
    return Index((), int(value))


def var(v: Var) -> Index:
    return _sum([(v, 1)], 0)


def _atom(name: str, args: tuple[Index, ...], *params: int | str) -> Index:
    return _sum([(Fn(name, args, params), 1)], 0)


def _split(e: Index, c: int) -> tuple[Index, Index]:
    """e = c * quotient + rest, where the rest holds the terms that c does not divide."""
    quotient = _sum([(a, k // c) for a, k in e.terms if k % c == 0], e.constant // c)
    rest = _sum([(a, k) for a, k in e.terms if k % c], e.constant % c)
    shift = rest.lo // c
    return quotient + shift, rest - shift * c


def _scaled(e: Index, c: int) -> tuple[int, Index, Index] | None:
    """(k, big, small) with e = k big + small, 0 <= small < k and k a factor of c: then
    e // c = big // (c / k) and e % c = k (big % (c / k)) + small."""
    for k in sorted({math.gcd(coefficient, c) for _, coefficient in e.terms}, reverse=True):
        small = _sum([(a, q) for a, q in e.terms if q % k], e.constant % k)
        if k > 1 and small.lo >= 0 and small.hi < k:
            return k, _sum([(a, q // k) for a, q in e.terms if q % k == 0], e.constant // k), small
    return None


def floordiv(e: Index, c: int) -> Index:
    if c == 1:
        return e
    quotient, rest = _split(e, c)
    if rest.hi < c:
        return quotient
    if (scaled := _scaled(rest, c)) is not None:
        k, big, _ = scaled
        return quotient + floordiv(big, c // k)
    if (parts := _coarse(rest, c)) is not None:
        step, coarse, _ = parts
        return quotient + floordiv(coarse, c // step)
    if len(rest.terms) == 1 and rest.constant == 0:  # (x // a) // b = x // (a b)
        ((atom, k),) = rest.terms
        if k == 1 and isinstance(atom, Fn) and atom.name == "div":
            return quotient + floordiv(atom.args[0], int(atom.params[0]) * c)
    return quotient + _atom("div", (rest,), c)


def mod(e: Index, c: int) -> Index:
    if c == 1:
        return const(0)
    _, rest = _split(e, c)
    if rest.hi >= c and (parts := _coarse(rest, c)) is not None:
        step, coarse, fine = parts
        return mod(coarse, c // step) * step + fine
    return rest if rest.hi < c else _atom("mod", (rest,), c)


def _coarse(e: Index, c: int) -> tuple[int, Index, Index] | None:
    """e = step * coarse + fine with 0 <= fine < step, step dividing c and more than 1."""
    steps = sorted({math.gcd(abs(k), c) for _, k in e.terms} - {1}, reverse=True)
    for step in steps:
        fine = _sum([(a, k) for a, k in e.terms if k % step], e.constant % step)
        if 0 <= fine.lo and fine.hi < step:
            coarse = _sum([(a, k // step) for a, k in e.terms if k % step == 0], e.constant // step)
            return step, coarse, fine
    return None


def reflect(e: Index, n: int) -> Index:
    """Mirror at 0 and n - 1 without repeating the edge; -n < e < 2n - 1."""
    if 0 <= e.lo and e.hi < n:
        return e
    if e.hi <= 0:
        return e * -1
    if e.lo >= n - 1:
        return const(2 * (n - 1)) - e
    return _atom("reflect", (e,), n)


def clamp(e: Index, lo: int, hi: int) -> Index:
    if lo <= e.lo and e.hi <= hi:
        return e
    if e.hi <= lo:
        return const(lo)
    return const(hi) if e.lo >= hi else _atom("clamp", (e,), lo, hi)


def table(name: str, address: Index, extent: int) -> Index:
    """The entry of an index array at run time, brought into 0 .. extent - 1."""
    return _atom("table", (address,), name, extent)


def flatten(index: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """The row-major position."""
    position = const(0)
    for i, extent in zip(index, shape, strict=True):
        position = position * extent + i
    return position


def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The index at a row-major position that is known to lie inside."""
    index = [const(0)] * len(shape)
    axes = [a for a, extent in enumerate(shape) if extent > 1]
    for axis in reversed(axes):
        index[axis] = mod(position, shape[axis]) if axis != axes[0] else position
        position = floordiv(position, shape[axis])
    return tuple(index)


def reshape_index(index: tuple[Index, ...], shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[Index, ...]:
    """The index, in a tensor of shape `to`, of the element at `index` in one of shape `shape`. Axes are
    matched group by group, so that untouched axes never meet a division."""
    result = [const(0)] * len(to)
    if 0 in shape:
        return tuple(result)
    source = [k for k, s in enumerate(shape) if s != 1]
    target = [k for k, s in enumerate(to) if s != 1]
    i = j = 0
    while i < len(source):
        a, b, i2, j2 = shape[source[i]], to[target[j]], i + 1, j + 1
        while a != b:
            if a < b:
                a, i2 = a * shape[source[i2]], i2 + 1
            else:
                b, j2 = b * to[target[j2]], j2 + 1
        group = source[i:i2]
        position = flatten(tuple(index[k] for k in group), tuple(shape[k] for k in group))
        parts = unflatten(position, tuple(to[k] for k in target[j:j2]))
        for k, part in zip(target[j:j2], parts, strict=True):
            result[k] = part
        i, j = i2, j2
    return tuple(result)


def substitute(e: Index, mapping: Callable[[Var], Index | None]) -> Index:
    """Replace variables, and simplify again."""
    total = const(e.constant)
    for atom, c in e.terms:
        total = total + _replace(atom, mapping) * c
    return total


def _replace(atom: Var | Fn, mapping: Callable[[Var], Index | None]) -> Index:
    if isinstance(atom, Var):
        new = mapping(atom)
        return var(atom) if new is None else new
    args = [substitute(a, mapping) for a in atom.args]
    if atom.name == "div":
        return floordiv(args[0], int(atom.params[0]))
    if atom.name == "mod":
        return mod(args[0], int(atom.params[0]))
    if atom.name == "reflect":
        return reflect(args[0], int(atom.params[0]))
    if atom.name == "clamp":
        return clamp(args[0], int(atom.params[0]), int(atom.params[1]))
    return table(str(atom.params[0]), args[0], int(atom.params[1]))


def text(e: Index) -> str:
    """C++ of an index."""
    parts: list[str] = []
    for atom, c in e.terms:
        name = atom.name if isinstance(atom, Var) else _call(atom)
        sign = "-" if c < 0 else "+"
        parts.append(f"{sign} {name}" if abs(c) == 1 else f"{sign} {abs(c)} * {name}")
    if e.constant or not parts:
        parts.append(f"{'-' if e.constant < 0 else '+'} {abs(e.constant)}")
    out = " ".join(parts)
    return out[2:] if out.startswith("+ ") else "-" + out[2:]


def _call(atom: Fn) -> str:
    inner = text(atom.args[0])
    if atom.name in ("div", "mod"):
        alone = len(atom.args[0].terms) == 1 and not atom.args[0].constant and inner[0] == "("
        left = inner if alone or inner.isidentifier() else f"({inner})"
        return f"({left} {'/' if atom.name == 'div' else '%'} {atom.params[0]})"
    if atom.name == "table":
        return f"index_at({atom.params[0]}, {inner}, {atom.params[1]})"
    return f"{atom.name}_index({', '.join([inner, *map(str, atom.params)])})"
