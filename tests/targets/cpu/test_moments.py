"""Convolutions that give the statistics of their result, against float64.

A mean's error is bounded as the map's own; the variance's relative to itself: moments of parts
combine without cancellation, so a large mean costs nothing beyond the rounding of the map.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fissile
from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value
from fissile.kernels.identify import Limits, identify
from fissile.kernels.statistics import statistics_of
from fissile.targets.cpu.impls import measured
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import expected, run_kernel
from sliding_cases import (
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

if this_machine().vl != 16:
    pytest.skip("the kernels here are written for AVX-512", allow_module_level=True)


def statistics(y: Value) -> tuple[Value, Value, Value]:
    """As a normalisation asks for them: (mean, variance, scale / sqrt(variance + epsilon))."""
    axes = range(2, y.rank)
    mean = p.reduce_mean(y, axes)
    apart = y - mean
    variance = p.reduce_mean(apart * apart, axes)
    scale = weights(y.shape[1], *[1] * (y.rank - 2))
    return mean, variance, p.rsqrt(variance + 1e-5) * scale


def convolution(
    n: int = 1, c: int = 16, m: int = 32, size: tuple[int, int] = (12, 14), k: int = 3,
    stride: int = 1, groups: int = 1, mode: str = "constant",
) -> Value:  # fmt: skip
    pad = k // 2
    x = padded(image(n, c, *size), ((pad, pad), (pad, pad)), mode)
    y = p.conv(x, weights(m, c // groups, k, k), (stride, stride), (1, 1), groups)
    return y + weights(m, 1, 1)


CASES = {
    "plain": case(),
    "17 channels to 47": case(c=17, m=47),
    "a few channels": case(c=3, m=5),
    "two images": case(n=2, size=(9, 7)),
    "bands and a rest": case(c=64, m=64, size=(31, 30)),
    "one row": case(size=(1, 20)),
    "one pixel": case(size=(1, 1)),
    "9x9": case(c=3, k=9),
    "1x1": case(c=48, k=1),
    "stride 2": case(stride=2, size=(15, 17)),
    "groups": case(c=32, m=64, groups=2),
    "reflected": case(mode="reflect"),
}
OURS = {"conv": {"by": "conv"}, "F(2,3)": {"by": "winograd", "m": 2},
        "F(4,3)": {"by": "winograd", "m": 4}}  # fmt: skip
TOLERANCE = {"conv": 4e-6, "F(2,3)": 6e-6, "F(4,3)": 3e-5}
FITS = [
    (name, how) for name, arguments in CASES.items() for how in OURS
    if how == "conv" or {"k", "stride", "groups"}.isdisjoint(arguments)
]  # fmt: skip


@pytest.mark.parametrize(("name", "how"), FITS)
@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["16", "8"])
def test_moments(name, how, machine):
    y = convolution(**CASES[name])
    kernel = check(
        measured.lower, (y, *statistics(y)), LAST, machine=machine, tolerance=TOLERANCE[how],
        **OURS[how],
    )  # fmt: skip
    assert kernel.closes


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["16", "8"])
def test_moments_of_stride_two(machine):
    y = convolution(c=24, m=40, stride=2, size=(31, 30))
    check(measured.lower, (y, *statistics(y)), LAST, machine=machine, tolerance=6e-6,
          by="winograd", m=3)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40), st.integers(2, 70), st.integers(1, 19), st.integers(1, 19),
    st.integers(1, 2), st.sampled_from(sorted(OURS)), st.integers(1, 7),
)  # fmt: skip
def test_random_shapes(c, m, h, w, n, how, rows):
    y = convolution(n=n, c=c, m=m, size=(h, w))
    rows = rows if how == "conv" else 4 * rows
    asked = {"rows": rows, "py": 1} if how == "conv" else {}
    if how == "conv" and -(-h // -(-h // rows)) != rows:
        asked = {}  # no band of theirs
    mean, variance, _ = statistics(y)  # of few pixels it may be tiny: its root is no test of ours
    check(
        measured.lower, (y, mean, variance), LAST, tolerance=2 * TOLERANCE[how], **OURS[how],
        **asked,
    )  # fmt: skip


def lowered(y: Value, how: str, **params: object):
    c = candidate((y, *statistics(y)), LAST, LAST, **OURS[how], **params)
    kernel = measured.lower(c, WIDE)
    assert kernel, kernel
    return c, kernel


@pytest.mark.parametrize("how", OURS)
def test_a_large_mean_leaves_the_variance(how):
    """The map is near 10^4 with a variance near 1: E[y^2] - E[y]^2 would lose all of it. What is
    left is the rounding of the map: half a unit in the last place of 10^4 in each element."""
    unchanged = np.eye(16).reshape(16, 16, 1, 1) * np.pad([[1.0]], 1)
    k = p.constant(unchanged.astype(np.float32))
    x = image(1, 16, 40, 40)
    y = p.conv(padded(x, ((1, 1), (1, 1)), "reflect"), k, (1, 1), (1, 1)) + 1e4
    c, kernel = lowered(y, how)
    data = np.random.default_rng(1).standard_normal((1, 16, 40, 40)).astype(np.float32)
    y_got, mean, variance, _ = run_kernel(c, kernel, [data])
    own = y_got.astype(np.float64)
    np.testing.assert_allclose(mean, own.mean((2, 3), keepdims=True), rtol=3e-7)
    np.testing.assert_allclose(variance, own.var((2, 3), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("how", OURS)
def test_equal_values_have_no_variance(how):
    y = convolution(c=16, m=32, size=(37, 23), mode="edge")
    c, kernel = lowered(y, how)
    data = np.full((1, 16, 37, 23), 0.3, np.float32)
    y_got, mean, variance, _ = run_kernel(c, kernel, [data])
    assert (y_got == y_got[:, :, :1, :1]).all()
    assert (mean == y_got[:, :, :1, :1]).all()
    assert (variance == 0).all()


def test_maps_in_the_wrong_order_are_refused():
    y = convolution()
    refused = measured.lower(candidate((y, *statistics(y)), FIRST, FIRST, by="conv"), WIDE)
    assert not refused and "statistics" in refused.reason


def normalised(y: Value) -> Value:
    mean, _, inverse = statistics(y)
    return p.maximum((y - mean) * inverse + weights(y.shape[1], 1, 1), 0.0)


def test_regions_that_take_statistics():
    """A normalisation between two convolutions: the first gives its map, mean and scale; what comes
    after needs those three and none of the first."""
    x = image(1, 32, 48, 48)
    y = p.conv(padded(x, ((1, 1), (1, 1))), weights(32, 32, 3, 3), (1, 1), (1, 1))
    z = p.conv(normalised(y), weights(8, 32, 1, 1), (1, 1), (1, 1))
    graph = Graph((x,), (z,), ("x",), ("z",))
    cpu = Cpu(graph)
    regions = identify(graph, cpu.limits, cpu.admissible)
    taking = [r for r in regions if statistics_of(r)]
    assert taking
    for r in taking:
        assert r.outputs[0] is y
        assert [v.node.prim for v in r.outputs[1:]] == ["reduce_mean", "mul"]
    assert not [r for r in identify(graph, Limits()) if statistics_of(r)]
    given = {*taking[0].outputs}
    assert any({*r.tensors} == given and z in r.outputs for r in regions)
    offered = [c for r in taking for c in cpu.implementations(r)]
    assert {c.impl for c in offered} == {"measured"}
    costs = {c.param["by"]: (c.saving > 1, c.error > 0, c.opened_bytes > 0) for c in offered}
    assert costs == {"conv": (False,) * 3, "winograd": (True,) * 3}


def test_a_variance_alone_needs_no_mean_outside():
    x = image(1, 16, 12, 12)
    y = p.conv(x, weights(32, 16, 3, 3), (1, 1), (1, 1))
    variance = statistics(y)[1]
    graph = Graph((x,), (y, variance), ("x",), ("y", "variance"))
    taking = [r for r in identify(graph, Cpu(graph).limits) if statistics_of(r)]
    assert {r.outputs for r in taking} == {(y, variance)}
    c = candidate((y, variance), LAST, LAST, by="conv")
    kernel = measured.lower(c, WIDE)
    inputs = [np.random.default_rng(5).standard_normal((1, 16, 12, 12)).astype(np.float32)]
    for got, want in zip(run_kernel(c, kernel, inputs), expected(c, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max())


def test_a_program_with_statistics(tmp_path):
    """Verified against float64 as it is compiled; the bits are those of one thread."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 16, 40, 40] x) => (float[2, 16, 40, 40] z)
        {
          y = Conv <pads = [1, 1, 1, 1]> (x, k)
          n = InstanceNormalization (y, scale, shift)
          r = Relu (n)
          z = Conv <pads = [1, 1, 1, 1]> (r, l)
        }"""
    )
    shapes = {"k": (32, 16, 3, 3), "scale": (32,), "shift": (32,), "l": (16, 32, 3, 3)}
    constants = [onnx.numpy_helper.from_array(noise(*s), name) for name, s in shapes.items()]
    model.graph.initializer.extend(constants)
    exe = fissile.compile(model, threads=2, tune=0, folder=tmp_path / "m", without=("rows",))
    assert "measured" in [c.impl for c in exe.selection.chosen]
    x = noise(2, 16, 40, 40, seed=9)
    one = fissile.load(tmp_path / "m", threads=1)
    results = [run(x).tobytes() for run in (exe, one, exe, one)]
    assert len({*results}) == 1
