"""Loops whose contiguous axis differs on their two sides: blocks are transposed in registers, or
through squares that stay in the first cache.
"""

from __future__ import annotations

from dataclasses import replace

from fissile.tiles.change import expressions, rewrite, substitution
from fissile.tiles.expr import Expr, Load, operations
from fissile.tiles.index import Index, Var, const, substitute, text, var
from fissile.tiles.lanes import vectorises
from fissile.tiles.tree import Do, For, Lanes, Raw, Scope, Statement, Store, Tree, Turned


def transposed(loops: list[Var], statements: list[Statement]) -> tuple[Tree, ...] | None:
    """A copy whose contiguous axis differs on its two sides, as a call of the blocked transpose."""
    if (
        len(statements) != 1
        or not isinstance(s := statements[0], Store)
        or not isinstance(s.value, Load)
    ):
        return None
    into, out_of = s.address, s.value.address
    if not (into.is_affine and out_of.is_affine):
        return None
    rows = [
        v for v in loops if into.coefficient(v) == 1 and out_of.coefficient(v) > 1 and v.extent >= 4
    ]
    columns = [
        v for v in loops if out_of.coefficient(v) == 1 and into.coefficient(v) > 1 and v.extent >= 4
    ]
    if len(rows) != 1 or len(columns) != 1:
        return None
    r, c = rows[0], columns[0]
    rest = substitution({r: const(0), c: const(0)})
    call = (
        f"transpose({s.pointer} + {text(rest(into))}, {into.coefficient(c)}, "
        f"{s.value.pointer} + {text(rest(out_of))}, {out_of.coefficient(r)}, "
        f"{r.extent}, {c.extent});"
    )
    tree: tuple[Tree, ...] = (Raw((call,)),)
    for v in reversed([v for v in loops if v not in (r, c)]):
        tree = (For(v, tree),)
    return tree


ROWS, COLUMNS = 32, 64  # of a square: it stays in the first cache
LIGHT = 4  # operations: the registers hold a block of 16 rows that are computed with as few


def in_squares(loops: list[Var], statements: list[Statement], far: bool) -> tuple[Tree, ...] | None:
    """Arithmetic on inputs that lie across the output: computed along the inputs, with lanes, and
    transposed in registers, or through a square where the arithmetic needs the registers."""
    if len(statements) != 1 or not isinstance(s := statements[0], Store):
        return None
    loads = [e.address for e in expressions(s.value) if isinstance(e, Load)]
    if not all(e.is_affine for e in (s.address, *loads)):
        return None
    long = [v for v in loops if v.extent >= 16]
    rows = [v for v in long if s.address.coefficient(v) == 1]
    columns = [
        v
        for v in long
        if s.address.coefficient(v) > 1 and all(e.coefficient(v) in (0, 1) for e in loads)
        if any(e.coefficient(v) == 1 for e in loads)
    ]
    if len(rows) != 1 or len(columns) != 1:
        return None
    r, c = rows[0], columns[0]
    crosses = any(e.coefficient(c) == 1 and e.coefficient(r) > 1 for e in loads)
    if not crosses or not vectorises([replace(s, address=var(c))], c):
        return None
    if operations(s.value) <= LIGHT and not far:
        corner = replace(s, address=substitute(s.address, {r: const(0), c: const(0)}.get))
        tree: tuple[Tree, ...] = (Turned(corner, r, c, s.address.coefficient(c)),)
    else:
        tree = (_squares(s, r, c, far),)
    for v in reversed([v for v in loops if v not in (r, c)]):
        tree = (For(v, tree),)
    return tree


def _squares(s: Store, r: Var, c: Var, far: bool) -> Tree:
    squares = [
        t for a in _cut(r, ROWS) for b in _cut(c, COLUMNS) for t in _square(s, r, c, a, b, far)
    ]
    declared = Raw((f"alignas(64) float square[{ROWS * COLUMNS}];",))
    return Scope((declared, *squares))


Cut = tuple[Var | None, Index, Var]  # a loop over blocks, where a block begins, a loop inside it


def _cut(v: Var, size: int) -> list[Cut]:
    """Whole blocks, and what is left."""
    count, rest = divmod(v.extent, size)
    blocks = Var(f"{v.name}b", 0, count - 1)
    whole: list[Cut] = [(blocks, var(blocks) * size, Var(v.name, 0, size - 1))] if count else []
    return whole + ([(None, const(count * size), Var(v.name, 0, rest - 1))] if rest else [])


def _square(s: Store, r: Var, c: Var, rows: Cut, columns: Cut, far: bool) -> tuple[Tree, ...]:
    """The squares of one size: `s` with r and c in these blocks."""
    (over_rows, top, i), (over_columns, left, j) = rows, columns
    (moved,) = rewrite([s], substitution({r: top + var(i), c: left + var(j)}))
    into = Store("square", var(i) * COLUMNS + var(j), moved.value)
    step, lanes = s.address.coefficient(c), vectorises([into], j)
    corner = f"{s.pointer} + {text(substitute(s.address, {r: top, c: left}.get))}"
    ahead = _ahead(moved.value, corner, step, i, j) if far and lanes else ()
    along = (Lanes if lanes else For)(j, (*ahead, Do((into,))))
    call = f"transpose({corner}, {step}, square, {COLUMNS}, {i.extent}, {j.extent});"
    tree: tuple[Tree, ...] = (For(i, (along,)), Raw((call,)))
    for v in (over_columns, over_rows):
        tree = tree if v is None else (For(v, tree),)
    return tree


LINE = 16  # floats


def _ahead(value: Expr, corner: str, step: int, i: Var, j: Var) -> tuple[Tree, ...]:
    """Asks, while a square is computed, for the lines that it is stored to, some for each of its
    rows, and for what the next square reads along them."""
    if i.extent != ROWS or j.extent % LINE:
        return ()
    column = f"({i.name} / 2 * {j.extent // LINE} + {j.name} / {LINE})"
    lines = [f"fetch_later({corner} + {step} * {column} + {i.name} % 2 * {LINE});"]
    for e in expressions(value):
        if isinstance(e, Load) and e.address.coefficient(i) > 1:
            lines.append(f"fetch_later({e.pointer} + {text(e.address + j.extent)});")
    return (Raw(tuple(lines)),)
