"""Trees of loops printed as C++ over `runtime/vec.h` and `runtime/prims.h`.

Inside a vector loop, `l` tells how many lanes take part (all, or the rest), `load(l, p)` and
`store(l, p, v)` respect it, and everything that does not change from lane to lane stays a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import numpy as np

from fissile.ir.prims import PRIMS
from fissile.ir.types import BOOL, F32, F64, DType
from fissile.tiles.change import expressions
from fissile.tiles.expr import FORMS, Choose, Expr, Literal, Load, Op, Register, operations
from fissile.tiles.index import Var, text
from fissile.tiles.lanes import varying
from fissile.tiles.tree import (
    Accumulate,
    Define,
    Do,
    For,
    If,
    Lanes,
    Raw,
    Scope,
    Statement,
    Store,
    Tree,
    Turned,
)

IDENTITY = {"sum": "0", "prod": "1", "max": "lowest<{}>()", "min": "highest<{}>()",
            "greatest": "lowest<{}>()"}  # fmt: skip
_FOLD = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "max({0}, {1})", "min": "min({0}, {1})",
         "greatest": "greatest({0}, {1})"}  # fmt: skip


# signed overflow is undefined in C++ and wraps in ONNX's integers
_WRAPS = {
    "add": "wrap_add({0}, {1})", "sub": "wrap_sub({0}, {1})", "mul": "wrap_mul({0}, {1})",
    "neg": "wrap_sub(decltype({0})(0), {0})",
}  # fmt: skip


def compute_type(dtype: DType) -> str:
    """The C type that arithmetic uses: half precision computes in float."""
    return "float" if dtype.name in ("f16", "bf16") else str(dtype.c)


def literal(value: object, dtype: DType) -> str:
    """An exact C++ literal."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float(float(value), dtype is F64)  # pyright: ignore[reportArgumentType]
    number = int(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if number == -(2**63):
        return "INT64_MIN"
    return (
        f"{number}"
        if dtype.name == "i32"
        else f"{dtype.c}({number}{'ull' if number >= 2**63 else ''})"
    )


def _float(x: float, double: bool) -> str:
    f = "" if double else "f"
    if math.isnan(x):
        return f'__builtin_nan{f}("")'
    if math.isinf(x):
        return f"{'-' if x < 0 else ''}__builtin_inf{f}()"
    shown = repr(x) if double else str(np.float32(x))
    return shown + ("" if any(c in shown for c in ".e") else ".0") + f


class Printer:
    """Prints trees; numbers the temporaries of one kernel."""

    def __init__(self) -> None:
        self.numbers = count()

    def trees(
        self, trees: Iterable[Tree], lane: Var | None = None, indent: int = 1
    ) -> Iterator[str]:
        for tree in trees:
            yield from self.tree(tree, lane, indent)

    def tree(self, tree: Tree, lane: Var | None, indent: int) -> Iterator[str]:
        tab = "  " * indent
        if isinstance(tree, Raw):
            yield from (tab + line for line in tree.lines)
        elif isinstance(tree, Do):
            yield from (tab + line for line in self.statements(tree.statements, lane))
        elif isinstance(tree, If):
            yield f"{tab}if ({text(tree.index)} < {tree.bound}) {{"
            yield from self.trees(tree.less, lane, indent + 1)
            yield f"{tab}}} else {{"
            yield from self.trees(tree.other, lane, indent + 1)
            yield f"{tab}}}"
        elif isinstance(tree, Scope):
            yield f"{tab}{{"
            yield from self.trees(tree.body, lane, indent + 1)
            yield f"{tab}}}"
        elif isinstance(tree, Turned):
            yield from (tab + line for line in self._turned(tree))
        elif isinstance(tree, For):
            v = tree.var
            yield f"{tab}for (int64_t {v.name} = {v.lo}; {v.name} < {v.hi + 1}; ++{v.name}) {{"
            if _chooses(tree.body, v):
                yield f"{tab}  FISSILE_NO_MASKS;"
            yield from self.trees(tree.body, lane, indent + 1)
            yield f"{tab}}}"
        elif tree.abreast:
            v = tree.var
            yield f"{tab}abreast<{v.extent}>([&](auto l, int64_t {v.name}, auto k) FISSILE_BODY {{"
            yield from self.trees(tree.body, v, indent + 1)
            yield f"{tab}}});"
        elif registers := _registers(tree):
            lines = self._in_turn(tree, registers)
            if not tree.opens:  # the accumulators of the next loop have the same names
                lines = ("{", *("  " + line for line in lines), "}")
            yield from (tab + line for line in lines)
        elif ahead := _ahead(tree):
            yield from (tab + line for line in self._lanes_ahead(tree, ahead))
        else:
            v = tree.var
            yield f"{tab}lanes({v.extent}, [&](auto l, int64_t {v.name}) {{"
            yield from self.trees(tree.body, v, indent + 1)
            yield f"{tab}}});"

    def _in_turn(self, tree: Lanes, registers: dict[str, str]) -> Iterator[str]:
        """A vector loop that reduces: accumulators in turn, folded at its end."""
        v = tree.var
        for register, op in registers.items():
            yield f"Turns<{v.extent}> {register}v({start(op)});"
        yield f"in_turn<{v.extent}>([&](auto l, int64_t {v.name}, auto k) FISSILE_BODY {{"
        yield from self.trees(tree.body, v, 1)
        yield "});"
        rows = dict(tree.rows)
        for register, op in registers.items():
            folded = f"h{op}({register}v)"
            if register in rows:
                yield f"{rows[register]} = h{op}_lanes({register}v);"
            elif tree.opens:
                yield f"float {register} = {folded};"
            else:
                yield f"{register} = {_FOLD[op].format(register, folded)};"

    def _lanes_ahead(self, tree: Lanes, loads: list[Load]) -> Iterator[str]:
        v = tree.var
        (do,) = tree.body
        assert isinstance(do, Do)
        shown = ", ".join(_load(e, v) for e in loads)
        names = {
            id(e): f"ahead[{loads.index(e)}]"
            for s in do.statements
            for e in expressions(s.value)
            if isinstance(e, Load) and e in loads
        }
        yield f"lanes_ahead({v.extent}, [&](auto l, int64_t {v.name}) {{"
        yield f"  return Vectors<{len(loads)}>{{{{{shown}}}}};"
        yield f"}}, [&](auto l, int64_t {v.name}, const Vectors<{len(loads)}>& ahead) {{"
        yield from ("  " + line for line in self.statements(do.statements, v, names))
        yield "});"

    def _turned(self, tree: Turned) -> Iterator[str]:
        s, r, c = tree.store, tree.rows, tree.columns
        names: dict[int, str] = {}
        yield (
            f"transpose_rows({s.pointer} + {text(s.address)}, {tree.step}, {r.extent}, {c.extent}, "
            f"[&](int64_t {r.name}, int64_t {c.name}) FISSILE_BODY {{"
        )
        yield "  const Full l;"
        yield from ("  " + line for line in self._temporaries([s.value], c, names))
        yield f"  return {self.expr(s.value, c, names)};"
        yield "});"

    def statements(
        self,
        statements: Iterable[Statement],
        lane: Var | None,
        known: Mapping[int, str] | None = None,
    ) -> Iterator[str]:
        """`known`: parts that have names already."""
        statements = list(statements)
        names = dict(known or {})
        computed = [e for s in statements for e in _parts(s)]
        yield from self._temporaries(computed, lane, names)
        for s in statements:
            if isinstance(s, Accumulate):
                register = s.register if lane is None else f"{s.register}v[k]"
                yield f"{register} = {self._accumulated(s, register, lane, names)};"
                continue
            value = self.expr(s.value, lane, names)
            spread = value if lane is None or varying(s.value, lane) else f"splat({value})"
            if isinstance(s, Define):
                ctype = compute_type(s.value.dtype) if lane is None else "vf"
                yield f"const {ctype} {s.name} = {spread};"
            elif isinstance(s, Store):
                target = f"{s.pointer} + {text(s.address)}"
                if lane is not None:
                    yield f"store(l, {target}, {spread});"
                else:
                    yield f"put({target}, {value});"

    def _accumulated(
        self, s: Accumulate, register: str, lane: Var | None, names: dict[int, str]
    ) -> str:
        """The register with a value more; a product is added by one fma."""

        def kept(e: Expr) -> str:
            if lane is None:
                return self._arg(e, lane, names)
            shown = self.expr(e, lane, names)
            spread = shown if varying(e, lane) else f"splat({shown})"
            return f"keep(l, {spread}, {identity(s.op)})"

        if product := product_of(s.op, s.value):
            return f"fma({kept(product.args[0])}, {kept(product.args[1])}, {register})"
        return _FOLD[s.op].format(register, kept(s.value))

    def _temporaries(
        self, roots: list[Expr], lane: Var | None, names: dict[int, str]
    ) -> Iterator[str]:
        """Lines that compute what is used more than once; `names` tells what they are called."""
        for e in _shared(roots, names):
            shown = self._expr(e, lane, names, top=True)
            names[id(e)] = f"t{next(self.numbers)}"
            yield f"const auto {names[id(e)]} = {shown};"

    def expr(self, e: Expr, lane: Var | None, names: dict[int, str]) -> str:
        return names.get(id(e)) or self._expr(e, lane, names, top=True)

    def _arg(self, e: Expr, lane: Var | None, names: dict[int, str]) -> str:
        return names.get(id(e)) or self._expr(e, lane, names, top=False)

    def _expr(self, e: Expr, lane: Var | None, names: dict[int, str], top: bool) -> str:
        if isinstance(e, Literal):
            return literal(e.value, e.dtype)
        if isinstance(e, Register):
            return e.text
        if isinstance(e, Load):
            return _load(e, lane)
        if isinstance(e, Choose):
            both = [self._branch(x, e, lane, names) for x in (e.less, e.other)]
            return f"({text(e.index)} < {e.bound} ? {both[0]} : {both[1]})"
        if e.prim == "where":
            return self._where(e, lane, names)
        args = [self._arg(a, lane, names) for a in e.args]
        wraps = _WRAPS.get(e.prim) if e.dtype.name in ("i32", "i64") else None
        form = wraps or (FORMS[e.prim][0] if e.prim in FORMS else str(PRIMS[e.prim].c))
        shown = form.format(*args, **self._attrs(e))
        if e.dtype.name in ("f16", "bf16"):
            return f"rounded<{e.dtype.c}>({shown})"
        if e.dtype.name in ("i8", "u8", "i16", "u16"):
            return f"cast<{e.dtype.c}>({shown})"
        return shown if top or form[0].isalpha() else f"({shown})"

    def _attrs(self, e: Op) -> dict[str, str]:
        return {"to": compute_type(e.dtype)} if e.prim == "cast" else {}

    def _branch(self, e: Expr, whole: Expr, lane: Var | None, names: dict[int, str]) -> str:
        """One side of a choice. What it shares within is computed inside: its loads may lie beyond
        their memory where the other side is taken."""
        names = dict(names)
        lines = list(self._temporaries([e], lane, names))
        shown = self._lifted(e, whole, lane, names)
        return f"[&]() FISSILE_BODY {{ {' '.join(lines)} return {shown}; }}()" if lines else shown

    def _lifted(self, e: Expr, whole: Expr, lane: Var | None, names: dict[int, str]) -> str:
        shown = self._arg(e, lane, names)
        return f"splat({shown})" if varying(whole, lane) and not varying(e, lane) else shown

    def _where(self, e: Op, lane: Var | None, names: dict[int, str]) -> str:
        condition = self._arg(e.args[0], lane, names)
        x, y = (self._lifted(a, e, lane, names) for a in e.args[1:])
        if varying(e.args[0], lane):
            return f"select({condition}, {x}, {y})"
        return f"({condition} ? {x} : {y})"


def _parts(s: Statement) -> tuple[Expr, ...]:
    """What a statement computes with: of a product that is added up, its factors."""
    product = product_of(s.op, s.value) if isinstance(s, Accumulate) else None
    return product.args if product else (s.value,)


def product_of(op: str, e: Expr) -> Op | None:
    """`e` where it is a product that is added up: by one fma."""
    return e if op == "sum" and isinstance(e, Op) and e.prim == "mul" and e.dtype is F32 else None


AHEAD = 8  # operations of a body whose loads come before the stores of earlier steps
AHEAD_VECTORS = 2  # that registers can hold four times


def _ahead(tree: Lanes) -> list[Load]:
    """What a long vector loop loads before its time: nothing where its steps are short."""
    if len(tree.body) != 1 or not isinstance(do := tree.body[0], Do) or tree.var.extent < 256:
        return []
    if not all(isinstance(s, Store) for s in do.statements):
        return []
    parts = [e for s in do.statements for e in expressions(s.value)]
    loads = [e for e in parts if isinstance(e, Load) and tree.var in e.address.vars]
    distinct = list(dict.fromkeys(loads))
    if any(isinstance(e, Choose) for e in parts) or len(distinct) > AHEAD_VECTORS:
        return []
    is_long = sum(operations(s.value) for s in do.statements) >= AHEAD
    return distinct if is_long else []


def _chooses(trees: Iterable[Tree], v: Var) -> bool:
    """Does a choice depend on this variable?"""
    for tree in trees:
        if isinstance(tree, If) and (
            v in tree.index.vars or _chooses((*tree.less, *tree.other), v)
        ):
            return True
        if isinstance(tree, For | Lanes | Scope) and _chooses(tree.body, v):
            return True
        if isinstance(tree, Do) and any(
            isinstance(e, Choose) and v in e.index.vars
            for s in tree.statements
            for e in expressions(s.value)
        ):
            return True
    return False


def _registers(tree: Lanes) -> dict[str, str]:
    """The registers that a vector loop accumulates into, and how."""
    statements = [s for t in tree.body if isinstance(t, Do) for s in t.statements]
    return {s.register: s.op for s in statements if isinstance(s, Accumulate)}


def identity(op: str) -> str:
    return IDENTITY[op].format("float") if "{}" in IDENTITY[op] else f"{IDENTITY[op]}.0f"


def start(op: str) -> str:
    """Where a vector of sums begins: -0.0 + x is x, so that the first addition is none."""
    return "-0.0f" if op == "sum" else identity(op)


def _load(e: Load, lane: Var | None) -> str:
    where = text(e.address)
    if lane is None or lane not in e.address.vars:
        return f"get({e.pointer} + {where})" if e.dtype is not F32 else f"{e.pointer}[{where}]"
    stride = e.address.coefficient(lane)
    return (
        f"load(l, {e.pointer} + {where})"
        if stride == 1
        else f"gather(l, {e.pointer} + {where}, {stride})"
    )


def _shared(roots: list[Expr], named: Mapping[int, str]) -> list[Expr]:
    """Parts that are used more than once and computed whichever way choices go, operands first;
    nothing that is named already."""
    uses: dict[int, int] = {}
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(e, False) for e in reversed(roots)]
    while stack:
        e, done = stack.pop()
        if done:
            order.append(e)
            continue
        uses[id(e)] = uses.get(id(e), 0) + 1
        if id(e) in seen or id(e) in named:
            continue
        seen.add(id(e))
        stack.append((e, True))
        if isinstance(e, Op):
            stack += [(c, False) for c in e.args]
    for e in order:
        if isinstance(e, Choose):
            for side in (e.less, e.other):
                for part in expressions(side):
                    if id(part) in seen:
                        uses[id(part)] += 1
    return [e for e in order if uses[id(e)] > 1 and isinstance(e, Op | Load | Choose)]
