"""How sums add up. Long ones in blocks, so that they stay accurate: a block is added up on its own,
then added to the rest. Those of lanes that are rows of their own in registers, not in arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fissile.ir.types import BOOL, F32, DType
from fissile.tiles.change import rewrite
from fissile.tiles.cpp import compute_type, literal, product_of
from fissile.tiles.expr import Expr, Op
from fissile.tiles.index import Var, const, substitute, var
from fissile.tiles.tree import (
    Accumulate,
    Do,
    For,
    If,
    Lanes,
    Raw,
    Scope,
    Statement,
    Store,
    Tree,
)

# operation -> primitive; "greatest" is a maximum that may lose a NaN
FOLD = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "greatest": "greatest"}
BLOCK = 4096  # elements of a vector loop that are folded at a time
SCALARS = 512  # steps of a scalar loop that are added up at a time

Sums = Mapping[str, tuple[str, DType]]  # register -> operation, element type


def neutral(op: str, dtype: DType) -> object:
    """The value that changes nothing."""
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    lowest = op in ("max", "greatest")
    if dtype is BOOL:
        return not lowest
    if dtype.is_float:
        return -np.inf if lowest else np.inf
    info = np.iinfo(dtype.numpy)
    return info.min if lowest else info.max


def declared(register: str, op: str, dtype: DType) -> Tree:
    return Raw((f"{compute_type(dtype)} {register} = {literal(neutral(op, dtype), dtype)};",))


def in_blocks(trees: Sequence[Tree], sums: Sums) -> list[Tree]:
    """Loops that accumulate into `sums`, with the registers before them."""
    if any(op in ("sum", "prod") for op, _ in sums.values()):
        trees = [b for t in trees for b in _blocked(t, sums)]
    if len(trees) == 1 and isinstance(trees[0], Lanes) and sums:
        return [replace(trees[0], opens=True)]
    return [*(declared(a, *how) for a, how in sums.items()), *trees]


def _blocked(tree: Tree, sums: Sums) -> list[Tree]:
    if isinstance(tree, If):
        less, other = (
            tuple(b for t in part for b in _blocked(t, sums)) for part in (tree.less, tree.other)
        )
        return [replace(tree, less=less, other=other)]
    if isinstance(tree, Lanes):
        return [*cut(tree, BLOCK)] if tree.var.extent > BLOCK else [tree]
    if not isinstance(tree, For):
        return [tree]
    if not all(isinstance(t, Do) for t in tree.body):
        if _is_short(tree.body) and all(dtype.is_float for _, dtype in sums.values()):
            return [_around(tree, _renamed(tree.body), sums)]
        return [replace(tree, body=tuple(b for t in tree.body for b in _blocked(t, sums)))]
    if tree.var.extent < 8 or not all(dtype.is_float for _, dtype in sums.values()):
        return [tree]
    loops = cut(tree, SCALARS) if tree.var.extent > SCALARS else [tree]
    return [_apart(t, sums) for t in loops]


def cut(tree: For | Lanes, size: int) -> list[For | Lanes]:
    """One loop as a loop over blocks and what is left."""
    v = tree.var
    count, rest = divmod(v.extent, size)
    o, i = Var(f"{v.name}b", 0, count - 1), Var(v.name, 0, size - 1)
    found: list[For | Lanes] = (
        [For(o, (_moved(tree, v, i, var(o) * size),))] if count > 1 else [_moved(tree, v, i)]
    )
    if rest:
        found.append(_moved(tree, v, Var(v.name, 0, rest - 1), const(count * size)))
    return found


def _moved(tree: For | Lanes, v: Var, new: Var, offset=const(0)) -> For | Lanes:  # noqa: B008
    at = var(new) + offset + v.lo
    body = tuple(
        Do(tuple(rewrite(t.statements, lambda i: substitute(i, lambda u: at if u == v else None))))
        for t in tree.body
        if isinstance(t, Do)
    )
    return replace(tree, var=new, body=body)


def _apart(tree: Tree, sums: Sums) -> Tree:
    """A scalar loop with registers of its own, which are added to the others at its end."""
    if isinstance(tree, For) and not isinstance(tree.body[0], Do):
        return replace(tree, body=tuple(_apart(t, sums) for t in tree.body))
    assert isinstance(tree, For)
    return _around(tree, _renamed(tree.body), sums)


def _is_short(trees: Sequence[Tree]) -> bool:
    """Scalar loops too short to be added up on their own."""
    return all(
        isinstance(t, Do)
        or (isinstance(t, For) and t.var.extent < 8 and all(isinstance(b, Do) for b in t.body))
        for t in trees
    )


def renamed(trees: Sequence[Tree], name: Callable[[str], str]) -> tuple[Tree, ...]:
    """The same loops, accumulating into other registers."""
    found: list[Tree] = []
    for t in trees:
        if isinstance(t, Do):
            statements = tuple(
                replace(s, register=name(s.register)) if isinstance(s, Accumulate) else s
                for s in t.statements
            )
            found.append(Do(statements))
        elif isinstance(t, For):
            found.append(replace(t, body=renamed(t.body, name)))
    return tuple(found)


def _renamed(trees: Sequence[Tree]) -> tuple[Tree, ...]:
    return renamed(trees, lambda register: f"{register}p")


def joined(register: str, op: str) -> str:
    """A line that adds the register of a part to the whole."""
    both = {"sum": "{0} = {0} + {0}p;", "prod": "{0} = {0} * {0}p;", "max": "{0} = max({0}, {0}p);",
            "min": "{0} = min({0}, {0}p);", "greatest": "{0} = greatest({0}, {0}p);"}  # fmt: skip
    return both[op].format(register)


def _around(tree: For, body: tuple[Tree, ...], sums: Sums) -> Tree:
    opening = [declared(f"{a}p", *how) for a, how in sums.items()]
    closing = [Raw((joined(a, op),)) for a, (op, _) in sums.items()]
    return Scope((*opening, replace(tree, body=body), *closing))


def in_registers(tree: Tree, ops: Mapping[str, str], step: int) -> Tree | None:
    """The same loops accumulating into registers instead of arrays of these names. None where not
    all of a loop over `step` lanes does."""
    if isinstance(tree, For | Scope):
        inside = [in_registers(t, ops, step) for t in tree.body]
        body = tuple(t for t in inside if t is not None)
        return replace(tree, body=body) if len(body) == len(inside) else None
    if isinstance(tree, Lanes) and tree.var.extent == step:
        statements = [s for t in tree.body if isinstance(t, Do) for s in t.statements]
        turned = tuple(_in_register(s, ops) for s in statements)
        return replace(tree, body=(Do(turned),), abreast=True)
    return tree if isinstance(tree, Raw) else None


def _in_register(s: Statement, ops: Mapping[str, str]) -> Statement:
    if not isinstance(s, Store) or s.pointer not in ops:
        return s
    e = s.value
    assert isinstance(e, Op)
    value = Op("mul", e.args[:2], (), F32) if e.prim == "fma" else e.args[1]
    return Accumulate(s.pointer, ops[s.pointer], value)


def added(op: str, total: Expr, value: Expr) -> Op:
    """A total with a value more; a product is added by one fma, as `Accumulate` does."""
    if product := product_of(op, value):
        return Op("fma", (*product.args, total), (), F32)
    return Op(FOLD[op], (total, value), (), F32)
