"""Builds regions around one window primitive, lowers and runs them, and compares with float64."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_blocked, channels_last, row_major
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.machine import Machine, this_machine

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

Lower = Callable[[Candidate, Machine], Kernel | No]
LAST, FIRST, BLOCKS = "last", "first", "blocks"
BOTH = (LAST, FIRST)
# the vectors of this processor, and those of eight floats that it has too
HERE = this_machine()
WIDE = Machine(HERE.vl, HERE.registers, l2_bytes=1 << 20, threads=2)
NARROW = Machine(vl=8, registers=16, threads=2) if HERE.vl == 16 else WIDE
FLAGS = {NARROW.vl: ("-DFISSILE_NARROW",), WIDE.vl: ()}  # the widest needs none


def noise(*shape: int, seed: int = 3) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.5).astype(np.float32)


def weights(*shape: int) -> Value:
    return p.constant(noise(*shape))


def case(**arguments: Any) -> dict[str, Any]:
    return arguments


def image(*shape: int) -> Value:
    return placeholder(of(shape))


def padded(
    x: Value, pads: Sequence[tuple[int, int]], mode: str = "constant", value: float = 0.0
) -> Value:
    """Pads of the spatial axes, (before, behind) each."""
    return p.pad(x, [0, 0, *(a for a, _ in pads)], [0, 0, *(b for _, b in pads)], mode, value)


def layout(name: str, rank: int, size: int = WIDE.vl) -> Layout:
    if name == BLOCKS and rank == 4:
        return channels_blocked(rank, size)
    return channels_last(rank) if name == LAST and rank > 2 else row_major(rank)


def candidate(
    outputs: Sequence[Value], needs: str, gives: str, size: int = WIDE.vl, **params: Any
) -> Candidate:
    """Tokens of the images' rank in these layouts, blocks of `size`; others row-major."""
    bare = candidate_of(tuple(outputs))
    rank = max(v.rank for v in bare.region.tensors)

    def of_value(name: str, v: Value) -> Layout:
        return layout(name if v.rank == rank else FIRST, v.rank, size)

    layouts = {v: of_value(needs, v) for v in bare.region.tensors}
    layouts |= {v: of_value(gives, v) for v in outputs}
    return candidate_of(tuple(outputs), layouts, **params)


def check(
    lower: Lower,
    outputs: Value | Sequence[Value],
    needs: str,
    gives: str | None = None,
    machine: Machine = WIDE,
    tolerance: float = 4e-6,
    **params: Any,
) -> Kernel:
    """Equal to float64 within the tolerance, relative to the largest output; equal bits however the
    tiles are divided; nothing written out of bounds."""
    outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
    c = candidate(outputs, needs, gives or needs, machine.vl, **params)
    kernel = lower(c, machine)
    assert isinstance(kernel, Kernel), kernel
    inputs = [noise(*t.value.shape, seed=i) for i, t in enumerate(c.needs)]
    results = run_kernel(c, kernel, inputs, flags=FLAGS[machine.vl])
    for got, want in zip(results, expected(c, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())
    return kernel
