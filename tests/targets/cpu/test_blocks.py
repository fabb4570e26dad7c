"""Convolutions and pools that read or give channels in blocks, against float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value
from fissile.ir.layout import channels_blocked, channels_last
from fissile.kernels.identify import identify
from fissile.targets.cpu.impls import conv, rows, windows
from fissile.targets.cpu.machine import Machine, this_machine
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from kernel_check import oracle
from running import candidate_of, expected, run_kernel
from sliding_cases import (
    BLOCKS,
    FIRST,
    LAST,
    NARROW,
    WIDE,
    candidate,
    case,
    check,
    image,
    noise,
    padded,
    weights,
)

PAIRS = [(BLOCKS, BLOCKS), (LAST, BLOCKS), (BLOCKS, LAST), (FIRST, BLOCKS), (BLOCKS, FIRST)]
MACHINES = [m for m in (WIDE, NARROW) if m.vl <= this_machine().vl]
# every pair on one machine, blocks to blocks on each
pairs = pytest.mark.parametrize(
    ("needs", "gives", "machine"),
    [(*pair, MACHINES[0]) for pair in PAIRS] + [(*PAIRS[0], m) for m in MACHINES[1:]],
    ids=lambda x: f"vl{x.vl}" if isinstance(x, Machine) else x,
)


def depthwise(
    n: int, c: int, h: int, w: int, k: int = 3, stride: int = 1, dilation: int = 1, pad: int = 1
) -> Value:
    x = image(n, c, h, w)
    x = padded(x, [(pad, pad)] * 2) if pad else x
    y = p.conv(x, weights(c, 1, k, k), (stride, stride), (dilation, dilation), c)
    return p.minimum(p.maximum(y + weights(c, 1, 1), 0.0), 6.0)


DEPTHWISE = {
    "3x3": case(n=1, c=48, h=14, w=14),
    "of one block": case(n=1, c=16, h=9, w=9),
    "batch": case(n=2, c=32, h=7, w=9),
    "stride 2": case(n=1, c=48, h=15, w=12, stride=2),
    "5x5": case(n=2, c=32, h=9, w=9, k=5, pad=2),
    "dilated": case(n=1, c=32, h=12, w=11, dilation=2, pad=2),
    "without pad": case(n=1, c=32, h=12, w=11, pad=0),
    "large pad": case(n=1, c=32, h=5, w=4, pad=3),
}


@pairs
@pytest.mark.parametrize("shape", DEPTHWISE)
def test_depthwise(shape: str, needs: str, gives: str, machine: Machine) -> None:
    check(conv.lower, depthwise(**DEPTHWISE[shape]), needs, gives, machine)


def test_depthwise_in_blocks_reads_the_input_in_place() -> None:
    kernel = check(conv.lower, depthwise(**DEPTHWISE["stride 2"]), BLOCKS)
    assert "band" not in kernel.source


def test_depthwise_with_a_prologue_and_a_residual() -> None:
    x, r = image(1, 48, 10, 10), image(1, 48, 10, 10)
    y = p.conv(padded(p.exp(x * 0.5), [(1, 1)] * 2), weights(48, 1, 3, 3), (1, 1), (1, 1), 48)
    for needs, gives in PAIRS:
        check(conv.lower, (y + r, y * 2.0), needs, gives)


CONVS = {
    "1x1": case(n=1, c=32, m=64, h=12, w=10),
    "1x1 of one block": case(n=2, c=16, m=16, h=7, w=7),
    "1x1 narrow": case(n=2, c=96, m=48, h=7, w=7),
    "1x1 stride 2": case(n=1, c=32, m=32, h=9, w=9, stride=2),
    "3x3": case(n=1, c=32, m=48, h=9, w=11, k=3, pad=1),
    "3x3 stride 2": case(n=2, c=16, m=32, h=9, w=11, k=3, stride=2, pad=1),
    "3x3 without pad": case(n=1, c=32, m=16, h=9, w=11, k=3),
}


@pairs
@pytest.mark.parametrize("shape", CONVS)
def test_convolutions(shape: str, needs: str, gives: str, machine: Machine) -> None:
    s = {"k": 1, "stride": 1, "pad": 0} | CONVS[shape]
    x = image(s["n"], s["c"], s["h"], s["w"])
    x = padded(x, [(s["pad"], s["pad"])] * 2) if s["pad"] else x
    y = p.conv(x, weights(s["m"], s["c"], s["k"], s["k"]), (s["stride"],) * 2, (1, 1))
    y = y + weights(s["m"], 1, 1)
    y = p.maximum(y + image(*y.shape), 0.0)
    check(conv.lower, y, needs, gives, machine)


def test_pointwise_in_blocks_reads_the_input_in_place() -> None:
    y = p.conv(image(1, 64, 8, 8), weights(32, 64, 1, 1), (1, 1), (1, 1))
    kernel = check(conv.lower, y, BLOCKS)
    assert "band" not in kernel.source


def test_the_first_convolution_gives_blocks() -> None:
    y = p.conv(padded(image(1, 3, 17, 17), [(0, 1)] * 2), weights(32, 3, 3, 3), (2, 2), (1, 1))
    x = y.node.inputs[0].node.inputs[0]
    c = candidate_of((y,), {x: channels_last(4), y: channels_blocked(4, WIDE.vl)})
    kernel = conv.lower(c, WIDE)
    assert kernel, kernel
    data = noise(*x.shape)
    (got,) = run_kernel(c, kernel, [data])
    np.testing.assert_allclose(got, expected(c, [data])[0], atol=1e-5)


@pairs
def test_pools(needs: str, gives: str, machine: Machine) -> None:
    x = image(2, 32, 9, 11)
    worst = padded(x, [(1, 1)] * 2, value=float("-inf"))
    check(windows.lower, p.window("window_max", worst, (3, 3), (2, 2)), needs, gives, machine)
    check(windows.lower, p.window("window_sum", x, (2, 2), (2, 2)) * 0.25, needs, gives, machine)


def test_means_over_blocks() -> None:
    x = image(2, 32, 9, 11)
    y = p.reduce_mean(x, (2, 3))
    c = candidate_of((y,), {x: channels_blocked(4, WIDE.vl)})
    kernel = rows.lower(c, WIDE)
    if kernel:
        data = noise(*x.shape)
        (got,) = run_kernel(c, kernel, [data])
        np.testing.assert_allclose(got, expected(c, [data])[0], atol=1e-6)


def test_refusals() -> None:
    y = p.conv(image(1, 32, 8, 8), weights(20, 32, 1, 1), (1, 1), (1, 1))
    assert "along the channels" in conv.lower(candidate((y,), LAST, BLOCKS), WIDE).reason  # pyright: ignore
    check(conv.lower, y * weights(20, 1, 1), BLOCKS, LAST)
    y = p.conv(image(1, 32, 8, 8), weights(32, 16, 1, 1), (1, 1), (1, 1), 2)
    assert "2 groups" in conv.lower(candidate((y,), BLOCKS, BLOCKS), WIDE).reason  # pyright: ignore
    y = p.conv(image(1, 32, 8, 8), weights(32, 32, 1, 1), (1, 1), (1, 1))
    other = candidate((y,), BLOCKS, BLOCKS, size=WIDE.vl // 2)
    assert f"vectors of {WIDE.vl}" in conv.lower(other, WIDE).reason  # pyright: ignore


# ---------------------------------------------------------------- in a whole network


def bottleneck() -> Graph:
    """An inverted residual around a depthwise convolution."""
    x = image(1, 24, 10, 10)
    wide = p.maximum(p.conv(x, weights(96, 24, 1, 1), (1, 1), (1, 1)), 0.0)
    y = p.conv(padded(wide, [(1, 1)] * 2), weights(96, 1, 3, 3), (1, 1), (1, 1), 96)
    y = p.conv(p.maximum(y, 0.0), weights(24, 96, 1, 1), (1, 1), (1, 1)) + x
    return Graph((x,), (y,), ("x",), ("y",))


def test_only_what_surrounds_depthwise_convolutions_may_lie_in_blocks() -> None:
    graph = bottleneck()
    blocked = {v for v, found in Cpu(graph, blocks=True).layouts.items() if found[-1].tile}
    assert {v.shape[1] for v in blocked} == {96} and len(blocked) == 5
    assert not any(found[-1].tile for found in Cpu(graph).layouts.values())


def test_kernels_of_a_network_in_blocks() -> None:
    graph = bottleneck()
    cpu = Cpu(graph, blocks=True)
    regions = identify(graph, cpu.limits, cpu.admissible)
    found = [c for r in regions for c in cpu.implementations(r)]
    tiled = [c for c in found if any(t.layout.tile for t in (*c.needs, *c.gives))]
    assert {c.impl for c in tiled} == {"conv", "map"}
    for c in tiled[:: max(1, len(tiled) // 12)]:
        kernel = cpu.kernel(c)
        assert kernel, kernel
        data = [noise(*t.value.shape, seed=i) for i, t in enumerate(c.needs)]
        for got, want in zip(run_kernel(c, kernel, data), oracle(c, data, True), strict=True):
            np.testing.assert_allclose(got, want, atol=4e-6 * np.abs(want).max())
