"""Integer index expressions with ranges: where an element of a value lies, as a function of loop
variables.

An `Index` is  sum coefficient * atom + constant.  An atom is a loop variable, or a floor division,
remainder, reflection, clamp or table look-up of another index. Every construction simplifies by the
ranges of the variables, so that splits, merges and pads of axes leave plain sums where loops are
chosen to fit them. What stays unresolved is still correct, and printed as C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

MEMO = 1 << 14  # results of a function of indices that are kept: kernels of a model are alike


class Var:
    """A loop variable with values lo .. hi, both included. Interned: equality is identity."""

    __slots__ = ("__weakref__", "_index", "hi", "lo", "name", "order")
    name: str
    lo: int
    hi: int
    order: str  # sorts atoms
    _index: Index | None

    def __new__(cls, name: str, lo: int, hi: int) -> Var:
        key = (name, lo, hi)
        if (known := _VARS.get(key)) is not None:
            return known
        self = object.__new__(cls)
        self.name, self.lo, self.hi, self._index = name, lo, hi, None
        self.order = f"Var(name={name!r}, lo={lo}, hi={hi})"
        return _VARS.setdefault(key, self)

    def __repr__(self) -> str:
        return self.order

    def __reduce__(self) -> tuple[Any, ...]:
        return Var, (self.name, self.lo, self.hi)

    @property
    def extent(self) -> int:
        return self.hi - self.lo + 1


_VARS: WeakValueDictionary[tuple[str, int, int], Var] = WeakValueDictionary()


class Fn:
    """A function of indices that is no sum: div, mod, reflect, clamp, table."""

    __slots__ = ("_hash", "_order", "args", "hi", "lo", "name", "params")

    def __init__(self, name: str, args: tuple[Index, ...], params: tuple[int | str, ...]):
        self.name, self.args, self.params = name, args, params
        self.lo, self.hi = self._range()
        self._hash = hash((name, args, params))
        self._order: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Fn) or self._hash != other._hash:
            return False
        return (self.name, self.args, self.params) == (other.name, other.args, other.params)

    def __repr__(self) -> str:
        return f"Fn(name={self.name!r}, args={self.args!r}, params={self.params!r})"

    @property
    def order(self) -> str:
        """Sorts atoms."""
        if self._order is None:
            self._order = repr(self)
        return self._order

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


Terms = tuple[tuple[Var | Fn, int], ...]


class Index:
    """Never changed once made. Kernels are made of millions of them, so what is asked often lies
    in slots: a frozen dataclass with cached properties took most of the time of lowering."""

    __slots__ = ("_hash", "_vars", "constant", "hi", "is_affine", "lo", "terms")

    def __init__(self, terms: Terms, constant: int):
        """`terms` are sorted, without a zero coefficient."""
        self.terms, self.constant = terms, constant
        self._hash: int | None = None
        self._vars: frozenset[Var] | None = None
        lo = hi = constant
        affine = True
        for atom, c in terms:
            if c > 0:
                lo += c * atom.lo
                hi += c * atom.hi
            else:
                lo += c * atom.hi
                hi += c * atom.lo
            if type(atom) is Fn:
                affine = False
        self.lo, self.hi, self.is_affine = lo, hi, affine

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.terms, self.constant))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Index):
            return False
        return self.constant == other.constant and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Index(terms={self.terms!r}, constant={self.constant!r})"

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms:  # nothing to bring together
            return Index(self.terms, self.constant + other.constant) if other.constant else self
        if not self.terms:
            return Index(other.terms, self.constant + other.constant) if self.constant else other
        return _sum(self.terms + other.terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        terms = tuple([(a, c * factor) for a, c in self.terms]) if factor else ()
        return Index(terms, self.constant * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, var: Var) -> int:
        for atom, c in self.terms:
            if atom is var:
                return c
        return 0

    @property
    def vars(self) -> frozenset[Var]:
        if self._vars is None:
            found: set[Var] = set()
            for atom, _ in self.terms:
                if isinstance(atom, Var):
                    found.add(atom)
                else:
                    for arg in atom.args:
                        found |= arg.vars
            self._vars = frozenset(found)
        return self._vars

    def depends_nonlinearly(self, var: Var) -> bool:
        if self.is_affine:
            return False
        return any(isinstance(a, Fn) and any(var in i.vars for i in a.args) for a, _ in self.terms)


def _sum(terms: Iterable[tuple[Var | Fn, int]], constant: int) -> Index:
    total: dict[Var | Fn, int] = {}
    affine = True
    for atom, c in terms:
        if atom in total:
            total[atom] += c
        else:
            total[atom] = c
            if type(atom) is Fn:
                affine = False
    if not affine:
        constant += _recombine(total)
    kept: list[tuple[Var | Fn, int]] = []
    for atom, c in total.items():
        if c:
            if atom.lo == atom.hi:
                constant += c * atom.lo
            else:
                kept.append((atom, c))
    if len(kept) > 1:
        kept.sort(key=_rank)
    return Index(tuple(kept), constant)


def _rank(term: tuple[Var | Fn, int]) -> tuple[int, str]:
    return -abs(term[1]), term[0].order


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
    if v._index is None:
        v._index = _sum(((v, 1),), 0)
    return v._index


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


@lru_cache(MEMO)
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


@lru_cache(MEMO)
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
        if fine.lo >= 0 and fine.hi < step:
            coarse = _sum([(a, k // step) for a, k in e.terms if k % step == 0], e.constant // step)
            return step, coarse, fine
    return None


def reflect(e: Index, n: int) -> Index:
    """Mirror at 0 and n - 1 without repeating the edge; -n < e < 2n - 1."""
    if e.lo >= 0 and e.hi < n:
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


def dot(index: Sequence[Index], strides: Sequence[int]) -> Index:
    """sum_a index[a] * strides[a]"""
    terms: list[tuple[Var | Fn, int]] = []
    constant = 0
    for i, stride in zip(index, strides, strict=True):
        if not i.is_affine:
            return _dot(index, strides)
        if stride:
            constant += i.constant * stride
            terms += [(a, c * stride) for a, c in i.terms]
    return _sum(terms, constant)


def _dot(index: Sequence[Index], strides: Sequence[int]) -> Index:
    """Sum by sum, each simplified."""
    total = const(0)
    for i, stride in zip(index, strides, strict=True):
        total = total + i * stride
    return total


def flatten(index: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """The row-major position."""
    strides, step = [1] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return dot(index, strides)


@lru_cache(MEMO)
def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The index at a row-major position that is known to lie inside."""
    index = [const(0)] * len(shape)
    axes = [a for a, extent in enumerate(shape) if extent > 1]
    for axis in reversed(axes):
        index[axis] = mod(position, shape[axis]) if axis != axes[0] else position
        position = floordiv(position, shape[axis])
    return tuple(index)


@lru_cache(MEMO)
def reshape_index(
    index: tuple[Index, ...], shape: tuple[int, ...], to: tuple[int, ...]
) -> tuple[Index, ...]:
    """The index, in a tensor of shape `to`, of the element at `index` in one of shape `shape`. Axes
    are matched group by group, so that untouched axes never meet a division."""
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
    if e.is_affine and (plain := _plainly(e, mapping)) is not None:
        return plain
    total = const(e.constant)
    for atom, c in e.terms:
        total = total + _replace(atom, mapping) * c
    return total


def _plainly(e: Index, mapping: Callable[[Var], Index | None]) -> Index | None:
    """The same in one sum, where no function of indices comes in."""
    terms: list[tuple[Var | Fn, int]] = []
    constant, same = e.constant, True
    for atom, c in e.terms:
        new = mapping(atom)  # pyright: ignore[reportArgumentType]
        if new is None:
            terms.append((atom, c))
        elif new.is_affine:
            same = False
            terms += [(a, k * c) for a, k in new.terms]
            constant += new.constant * c
        else:
            return None
    return e if same else _sum(terms, constant)


def replaced(e: Index, v: Var, new: Index) -> Index:
    """One variable replaced."""
    if e.is_affine and not e.coefficient(v):
        return e
    return substitute(e, lambda u: new if u is v else None)


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
