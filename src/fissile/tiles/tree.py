"""Statements, and the trees of loops and branches around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

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


def statements(trees: Iterable[Tree]) -> Iterator[Statement]:
    """All statements within, in their order."""
    for t in trees:
        if isinstance(t, Do):
            yield from t.statements
        elif isinstance(t, Turned):
            yield t.store
        elif isinstance(t, If):
            yield from statements((*t.less, *t.other))
        elif not isinstance(t, Raw):
            yield from statements(t.body)


def mapped(
    tree: Tree,
    of_statements: Callable[[Sequence[Statement]], tuple[Statement, ...]],
    of_index: Callable[[Index], Index],
) -> Tree:
    """The same loops and branches around other statements; `of_index` changes what branches ask."""

    def inside(trees: Sequence[Tree]) -> tuple[Tree, ...]:
        return tuple(mapped(t, of_statements, of_index) for t in trees)

    if isinstance(tree, Raw):
        return tree
    if isinstance(tree, Do):
        return Do(of_statements(tree.statements))
    if isinstance(tree, Turned):
        (store,) = of_statements((tree.store,))
        assert isinstance(store, Store)
        return replace(tree, store=store)
    if isinstance(tree, If):
        index = of_index(tree.index)
        return replace(tree, index=index, less=inside(tree.less), other=inside(tree.other))
    return replace(tree, body=inside(tree.body))
