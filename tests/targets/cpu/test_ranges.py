"""Kernels that compute rows of their output in one go, as stages of a chain: equal bits to the
kernel over tiles, and no other row is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls import contractions, conv, rows, windows

sys.path.insert(0, str(Path(__file__).parent))
from running import _run, candidate_of, compiled, run_kernel
from sliding_cases import FIRST, FLAGS, LAST, NARROW, WIDE, candidate, image, noise, padded, weights


def compare(lower, plain: Candidate, most: int, count: int, per_image: int, machine=WIDE) -> None:
    """Rows in calls of `most`, last image first, against the tiles."""
    asked = Candidate(
        plain.region,
        plain.impl,
        (*plain.params, ("range", (most, count))),
        plain.needs,
        plain.gives,
    )
    tiles, ranged = lower(plain, machine), lower(asked, machine)
    assert isinstance(tiles, Kernel) and isinstance(ranged, Kernel), (tiles, ranged)
    assert ranged.tiles == count
    inputs = [noise(*t.value.shape, seed=i) for i, t in enumerate(plain.needs)]
    want = run_kernel(plain, tiles, inputs, pieces=1, flags=FLAGS[machine.vl])
    parts = [
        (first, min(first + most, start + per_image))
        for start in range(0, count, per_image)
        for first in range(start, start + per_image, most)
    ]
    got = _run(
        compiled(ranged, FLAGS[machine.vl]), asked, ranged, inputs, [*reversed(parts), (2, 2)]
    )
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()


def bias(y: Value) -> Value:
    return p.clip(y + weights(y.shape[1], 1, 1), 0.0, 6.0)


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_convolutions(machine, stride: int, k: int) -> None:
    x = image(2, 20, 13, 11)
    pads = ((k // 2, k // 2), (k // 2, k // 2))
    y = p.conv(padded(x, pads) if k > 1 else x, weights(24, 20, k, k), (stride, stride), (1, 1))
    c = candidate((bias(y),), LAST, LAST)
    compare(conv.lower, c, 3, 2 * y.shape[2], y.shape[2], machine)


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("k", [3, 5])
def test_depthwise_convolutions(machine, channels: int, stride: int, k: int) -> None:
    x = image(2, channels, 13, 11)
    pads = ((k // 2, k // 2), (k // 2, k // 2))
    y = p.conv(padded(x, pads), weights(channels, 1, k, k), (stride, stride), (1, 1), channels)
    c = candidate((bias(y),), LAST, LAST)
    compare(conv.lower, c, 2, 2 * y.shape[2], y.shape[2], machine)


def test_pools() -> None:
    x = image(2, 32, 13, 11)
    y = p.window("window_max", padded(x, ((1, 1), (1, 1)), value=-np.inf), (3, 3), (2, 2), (1, 1))
    c = candidate((y,), LAST, LAST)
    compare(windows.lower, c, 2, 2 * y.shape[2], y.shape[2])


@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_pointwise_convolutions_by_rows_of_the_map(machine) -> None:
    x, r = image(2, 20, 13, 11), image(2, 40, 13, 11)
    y = bias(p.conv(x, weights(40, 20, 1, 1), (1, 1), (1, 1))) + r
    compare(contractions.lower, candidate((y,), LAST, LAST), 4, 26, 13, machine)


def test_contractions_and_rows() -> None:
    x = placeholder(of([2, 9, 33]))
    y = p.contract(x, weights(33, 50), "abk,kn->abn") + weights(50)
    compare(contractions.lower, candidate_of((y,)), 4, 18, 18)
    compare(contractions.lower, candidate_of((y,)), 4, 6, 6)  # three rows at a time
    centred = x - p.reduce_mean(x, (2,))
    z = centred * p.rsqrt(p.reduce_mean(centred * centred, (2,)) + 1e-5)
    compare(rows.lower, candidate_of((z,)), 4, 18, 18)
    compare(rows.lower, candidate_of((z,)), 4, 6, 6)


def test_other_orders_of_memory_are_refused() -> None:
    x = image(1, 20, 12, 12)
    y = p.conv(padded(x, ((1, 1), (1, 1))), weights(24, 20, 3, 3), (1, 1), (1, 1))
    c = candidate((y,), FIRST, FIRST, range=(2, 12))
    assert "channels innermost" in conv.lower(c, WIDE).reason  # pyright: ignore
    z = p.conv(x, weights(24, 20, 1, 1), (1, 1), (1, 1))
    assert not contractions.lower(candidate((z,), FIRST, FIRST, range=(2, 12)), WIDE)
    assert not contractions.lower(candidate((z,), LAST, LAST, range=(2, 7)), WIDE)
    s = x - p.reduce_max(x, (1,))
    assert not rows.lower(candidate((s,), FIRST, FIRST, range=(2, 12)), WIDE)
