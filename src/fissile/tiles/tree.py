"""Statements, and the trees of loops and branches around them."""

from __future__ import annotations

from dataclasses import dataclass

from fissile.tiles.expr import Expr
from fissile.tiles.index import Index, Var


@dataclass(frozen=True)
class Store:
    pointer: str
    address: Index
    value: Expr


@dataclass(frozen=True)
class Accumulate:
    """register = op(register, value); op: sum, max, min or prod. The register is one scalar: a
    vector loop accumulates lane by lane and folds its lanes into it at the end."""

    register: str
    op: str
    value: Expr


@dataclass(frozen=True)
class Define:
    """A constant of the enclosing scope."""

    name: str
    value: Expr


Statement = Store | Accumulate | Define


@dataclass(frozen=True)
class For:
    var: Var
    body: tuple[Tree, ...]


@dataclass(frozen=True)
class Lanes:
    """A loop in steps of the vector length; the last step may be partial. With `opens` the
    registers that it accumulates into begin here. `rows` names the array element that the vector
    of a register goes to, by register, where it is folded later. With `abreast` every lane is a
    register of its own, which begins and ends outside."""

    var: Var
    body: tuple[Tree, ...]
    opens: bool = False
    rows: tuple[tuple[str, str], ...] = ()
    abreast: bool = False


@dataclass(frozen=True)
class If:
    index: Index
    bound: int
    less: tuple[Tree, ...]
    other: tuple[Tree, ...]


@dataclass(frozen=True)
class Do:
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Scope:
    """Braces: what is declared in the body ends with it."""

    body: tuple[Tree, ...]


@dataclass(frozen=True)
class Raw:
    """Lines of C++ as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Turned:
    """`store` for all rows and columns, both at least a vector: its memory runs along the rows,
    with `step` elements between columns; what it reads runs along the columns."""

    store: Store
    rows: Var
    columns: Var
    step: int


Tree = For | Lanes | If | Do | Scope | Raw | Turned
