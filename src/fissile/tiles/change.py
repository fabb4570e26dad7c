"""Parts of expressions, and statements with some of them changed. Shared parts stay shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from fissile.tiles.expr import Choose, Expr, Load, Op
from fissile.tiles.index import Index, Var, substitute
from fissile.tiles.tree import Statement, Store


def expressions(e: Expr) -> Iterator[Expr]:
    """Every distinct part, the whole first."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        if isinstance(e, Op):
            stack.extend(e.args)
        elif isinstance(e, Choose):
            stack += [e.less, e.other]


def addresses(statements: Sequence[Statement]) -> Iterator[Index]:
    """Of all loads and stores, and the indices that choices ask about."""
    for s in statements:
        if isinstance(s, Store):
            yield s.address
        for e in expressions(s.value):
            if isinstance(e, Load):
                yield e.address
            elif isinstance(e, Choose):
                yield e.index


def rewrite(statements: Sequence[Statement], change: Callable[[Index], Index]) -> list[Statement]:
    """The same statements with every address changed; shared parts stay shared."""
    return [
        replace(s, address=change(s.address)) if isinstance(s, Store) else s
        for s in _mapped(statements, lambda e, visit: _changed(e, change, visit))
    ]


def exchange(
    statements: Sequence[Statement], other: Callable[[Expr], Expr | None]
) -> list[Statement]:
    """The same statements with some parts exchanged for others; shared parts stay shared."""
    return _mapped(statements, lambda e, visit: other(e) or _changed(e, lambda i: i, visit))


def _mapped(
    statements: Sequence[Statement], change: Callable[[Expr, Callable[[Expr], Expr]], Expr]
) -> list[Statement]:
    memo: dict[int, Expr] = {}

    def visit(e: Expr) -> Expr:
        if id(e) not in memo:
            memo[id(e)] = change(e, visit)
        return memo[id(e)]

    return [replace(s, value=visit(s.value)) for s in statements]


def _changed(e: Expr, change: Callable[[Index], Index], visit: Callable[[Expr], Expr]) -> Expr:
    if isinstance(e, Load):
        return replace(e, address=change(e.address))
    if isinstance(e, Op):
        return replace(e, args=tuple(visit(a) for a in e.args))
    if isinstance(e, Choose):
        return replace(e, index=change(e.index), less=visit(e.less), other=visit(e.other))
    return e


def substitution(new: Mapping[Var, Index]) -> Callable[[Index], Index]:
    """Of variables by indices."""
    return lambda e: substitute(e, new.get)
