"""Which statements may run with a loop as the vector axis."""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.types import BOOL, F32
from fissile.tiles.change import expressions
from fissile.tiles.expr import Choose, Expr, Load, Op, Register
from fissile.tiles.index import Index, Var
from fissile.tiles.tree import Statement, Store

_SCALAR_ONLY = {"cast", "not", "mod", "fmod", "is_nan", "is_inf", "xor"}


def vectorises(statements: Sequence[Statement], lane: Var) -> bool:
    """Is it right and worth it to run these statements with `lane` as the vector axis?"""
    return lane.extent >= 4 and fits_lanes(statements, lane)


def fits_lanes(statements: Sequence[Statement], lane: Var) -> bool:
    """Is it right to run these statements with `lane` as the vector axis?"""
    return all(
        (not isinstance(s, Store) or lane.extent == 1 or _unit(s.address, lane))
        and s.value.dtype is F32
        and all(_lane_safe(e, lane) for e in expressions(s.value))
        for s in statements
    )


def _unit(address: Index, lane: Var) -> bool:
    return address.coefficient(lane) == 1 and not address.depends_nonlinearly(lane)


def _lane_safe(e: Expr, lane: Var) -> bool:
    if isinstance(e, Load):
        if lane not in e.address.vars:
            return True
        return e.dtype is F32 and not e.address.depends_nonlinearly(lane)
    if isinstance(e, Choose):
        return lane not in e.index.vars
    if isinstance(e, Op):
        varies = varying(e, lane)
        return not varies or (e.dtype in (F32, BOOL) and e.prim not in _SCALAR_ONLY)
    return True


def varying(e: Expr, lane: Var | None) -> bool:
    """Does the value differ from lane to lane?"""
    if lane is None:
        return False
    for part in expressions(e):
        if isinstance(part, Load) and lane in part.address.vars:
            return True
        if isinstance(part, Register) and part.lanes:
            return True
    return False
