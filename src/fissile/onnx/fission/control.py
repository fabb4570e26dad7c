"""Control flow: If whose branches are pure, Loop and Scan unrolled where the trip count is known.

A subgraph arrives as a function from operands to results.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import broadcast, concat, constant, logical_and, normal_axes, reshape, where
from fissile.onnx.fission.layout import along
from fissile.onnx.rule import Int, fission

TRIPS_LIMIT = 512


@fission("If")
def branch(condition, *, then_branch, else_branch):
    """A known condition takes one branch; otherwise both run and the results are selected."""
    if condition.type.numel != 1:
        raise ModelError("its condition must hold one element")
    if condition.is_constant:
        return then_branch() if condition.array.ravel()[0] else else_branch()
    flag = reshape(condition, ())
    return [_either(flag, a, b) for a, b in zip(then_branch(), else_branch(), strict=True)]


def _either(flag: Value, yes: Value, no: Value) -> Value:
    if yes.type != no.type:
        raise ModelError(f"one way gives {yes.type}, the other {no.type}; a condition that only "
                         "run time knows needs equal types")  # fmt: skip
    return yes if yes is no else where(flag, yes, no)


@fission("Loop")
def loop(trips: Int | None = None, condition=None, *state, body):
    """Results: the final state, then every trip's other results, stacked."""
    going, stacks, types = condition, [], None
    for trip in range(TRIPS_LIMIT + 1 if trips is None else trips):
        if going is not None and going.is_constant:
            if not going.array.ravel()[0]:
                break
            going = None
        if trip == TRIPS_LIMIT:
            raise ModelError(f"it makes more trips than the {TRIPS_LIMIT} that can be unrolled")
        if going is not None and trips is None:
            raise ModelError("its trip count is known at run time only, which is not supported yet")
        again, *results = body(constant(trip), constant(True) if going is None else going, *state)
        new, scanned = results[: len(state)], results[len(state) :]
        if going is not None:
            if scanned:
                raise ModelError(
                    "it stacks results while run time decides how many; not supported yet"
                )
            flag = reshape(going, ())
            new = [_either(flag, a, b) for a, b in zip(new, state, strict=True)]
            again = logical_and(flag, reshape(again, ()))
        state, going = new, again
        stacks.append(scanned)
    if not stacks:
        _, *results = body(constant(0), constant(True), *state)
        types = results[len(state) :]
        return [*state, *(broadcast(constant(0, v.type.dtype), (0, *v.shape)) for v in types)]
    return [*state, *(_stacked(parts, 0) for parts in zip(*stacks, strict=True))]


def _stacked(parts: Sequence[Value], axis: int) -> Value:
    shape = parts[0].shape
    axis = axis % (len(shape) + 1)
    return concat([reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in parts], axis)


@fission("Scan", since=9)
def scan(
    *operands, body, num_scan_inputs, scan_input_axes=None, scan_input_directions=None,
    scan_output_axes=None, scan_output_directions=None,
):  # fmt: skip
    count = len(operands) - num_scan_inputs
    state, rows = operands[:count], operands[count:]
    axes = [
        normal_axes(x, a)[0] for x, a in zip(rows, scan_input_axes or [0] * len(rows), strict=True)
    ]
    backwards = scan_input_directions or [0] * len(rows)
    trips = rows[0].shape[axes[0]]
    if trips > TRIPS_LIMIT:
        raise ModelError(
            f"it makes {trips} trips, more than the {TRIPS_LIMIT} that can be unrolled"
        )
    stacks = []
    for trip in range(trips):
        places = [trips - 1 - trip if b else trip for b in backwards]
        picked = [_picked(x, a, i) for x, a, i in zip(rows, axes, places, strict=True)]
        results = body(*state, *picked)
        state = results[:count]
        stacks.append(results[count:])
    columns = list(zip(*stacks, strict=True))
    out_axes = scan_output_axes or [0] * len(columns)
    flipped = scan_output_directions or [0] * len(columns)
    outs = [
        _stacked(c[::-1] if f else c, a) for c, a, f in zip(columns, out_axes, flipped, strict=True)
    ]
    return [*state, *outs]


def _picked(x: Value, axis: int, index: int) -> Value:
    return reshape(along(x, axis, index, 1), x.shape[:axis] + x.shape[axis + 1 :])
