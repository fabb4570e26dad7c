"""Winograd's convolution against float64, for every tile size.

Tolerances come from the distribution of the error (docs/decisions/007-winograd-points.md): for
normal data its relative rms is at most 3.2e-8 sqrt(C) for m = 2 and 3 and 1.4e-7 sqrt(C) for m = 4,
of outputs whose largest is some four times their rms; the largest of 10^5 normal errors is below
five times their rms. So the largest error is below 5/4 of these numbers of the largest output; the
tests allow a factor of 4 beyond for pads, epilogues and shapes with few outputs.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Value
from fissile.targets.cpu.impls import winograd
from fissile.targets.cpu.impls.anchor import CHANNELS, slide
from fissile.targets.cpu.machine import Machine, this_machine
from fissile.targets.cpu.packing import PACKERS, WINOGRAD_FORMS, WINOGRAD_POINTS, winograd_filter

sys.path.insert(0, str(Path(__file__).parent))
import running
from sliding_cases import FIRST, LAST, NARROW, WIDE, candidate, case, check, image, padded, weights
from test_conv import EPILOGUES, activated, biased, convolution, cut, joined, reflected, upsampled

if this_machine().vl != 16:
    pytest.skip("the kernels here are written for AVX-512", allow_module_level=True)

SIZES = (2, 3, 4)
RMS = {2: 3.2e-8, 3: 3.2e-8, 4: 1.4e-7}
STEPS = {2: (1, 1), 3: (2, 2), 4: (1, 1)}


def right(y: Value | tuple[Value, ...], m: int, c: int, where: str = LAST, **asked: object) -> None:
    """`c`: channels of the convolution's input."""
    tolerance = 4 * 5 / 4 * RMS[m] * math.sqrt(max(c, 16))
    check(winograd.lower, y, where, tolerance=tolerance, m=m, **asked)


SHAPES = {
    "one channel": case(c=1, m=2, size=(8, 8)),
    "three channels": case(c=3, m=32, size=(9, 12)),
    "odd channels": case(c=33, m=47, size=(13, 14)),
    "17 channels to 16": case(c=17, m=16, size=(12, 12)),
    "two images": case(c=16, m=24, size=(9, 7), n=2),
    "one row": case(c=16, m=16, size=(1, 20)),
    "one column": case(c=16, m=16, size=(20, 1)),
    "one pixel": case(c=8, m=8, size=(1, 1)),
    "no pads": case(c=16, m=16, size=(10, 11), pads=((0, 0), (0, 0))),
    "wide pads": case(c=16, m=16, size=(5, 6), pads=((2, 3), (3, 2))),
    "rows that meet in the cache": case(c=256, m=16, size=(6, 6)),
    "many panels": case(c=16, m=200, size=(6, 6)),
    "many tiles": case(c=8, m=16, size=(57, 61)),
}  # fmt: skip


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, m):
    right(biased(convolution(**SHAPES[shape], strides=STEPS[m])), m, SHAPES[shape]["c"])


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("shape", ["odd channels", "two images", "many tiles"])
def test_vectors_of_eight(shape, m):
    right(
        biased(convolution(**SHAPES[shape], strides=STEPS[m])),
        m,
        SHAPES[shape]["c"],
        machine=NARROW,
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 70), st.integers(2, 70), st.integers(1, 19), st.integers(1, 19),
    st.integers(1, 2), st.sampled_from(["constant", "reflect", "edge"]), st.sampled_from(SIZES),
)  # fmt: skip
def test_random_shapes(c, k, h, w, n, mode, m):
    h, w = (max(h, 2), max(w, 2)) if mode == "reflect" else (h, w)
    assume(n * k * h * w >= 64)  # else the largest output may be near 0, and errors are not
    x = padded(image(n, c, h, w), ((1, 1), (1, 1)), mode)
    right(biased(p.conv(x, weights(k, c, 3, 3), STEPS[m], (1, 1))), m, c)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("prologue", [reflected, activated, joined, upsampled, cut])
def test_prologues(prologue, m):
    right(biased(p.conv(prologue(32), weights(32, 32, 3, 3), STEPS[m], (1, 1))), m, 32)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue, m):
    right(epilogue(convolution(c=24, m=24, size=(13, 14), strides=STEPS[m])), m, 24)


@pytest.mark.parametrize("m", SIZES)
def test_two_outputs(m):
    y = biased(convolution(strides=STEPS[m]))
    right((y, p.maximum(y, 0.0)), m, 16)


@pytest.mark.parametrize("m", SIZES)
def test_an_input_in_the_other_layout(m):
    y = biased(convolution(c=20, m=40, size=(13, 14), strides=STEPS[m]))
    check(winograd.lower, y, FIRST, LAST, tolerance=5 * RMS[m] * math.sqrt(20), m=m)


@pytest.mark.parametrize(
    "how",
    [
        case(nv=2, bands=4),
        case(nv=1, splits=4),
        case(nv=4),
        case(nv=3),
        case(nv=2, bands=2),
        case(together=2),
    ],
)
@pytest.mark.parametrize("m", SIZES)
def test_every_cut_gives_the_same_bits(how, m):
    """Panels, bands and registers only change which elements are computed together."""
    y = biased(convolution(c=40, m=64, size=(15, 18), n=2, strides=STEPS[m]))
    asked = {k: v for k, v in how.items() if k != "bands"}
    if "bands" in how:
        tiles = -(-y.shape[2] // m)
        asked["rows"] = m * -(-tiles // how["bands"])
    results = []
    for params in ({}, asked):
        c = candidate((y,), LAST, LAST, m=m, **params)
        kernel = winograd.lower(c, WIDE)
        assert kernel, kernel
        x = np.random.default_rng(5).standard_normal((2, 40, 15, 18)).astype(np.float32)
        results.append(running.run_kernel(c, kernel, [x])[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("together", [1, 2, 3, 6])
def test_images_together(together, m):
    """Six small images; the prologue, the epilogue and another operand are those of each."""
    x = convolution(c=24, m=40, size=(7, 6), n=6, strides=STEPS[m])
    right(biased(x), m, 24, together=together)
    right(p.maximum(x + image(*x.shape), 0.0), m, 24, together=together)


def test_deep_layers_of_a_batch_take_their_images_together():
    """7 x 7 and 512 channels: the weights of one image's tiles would come from afar 8 times."""
    y = convolution(c=512, m=512, size=(7, 7), n=8)
    s = slide(y.node, CHANNELS, (3, 3), 512, 1)
    assert winograd.cut(s, 4, WIDE, {}).together > 1
    offered = [dict(params) for params in winograd.variants(candidate((y,), LAST, LAST), WIDE)]
    assert {"m": 4, "together": 1} in offered and {"m": 4} in offered


@pytest.mark.parametrize("m", SIZES)
def test_a_flat_image_stays_flat(m):
    """Else an instance normalisation would divide the noise by its own size. 0.1 is rounded."""
    x = padded(image(1, 24, 13, 14), ((1, 1), (1, 1)), "reflect")
    c = candidate((p.conv(x, weights(20, 24, 3, 3), STEPS[m], (1, 1)),), LAST, LAST, m=m)
    kernel = winograd.lower(c, WIDE)
    assert kernel, kernel
    flat = np.broadcast_to(
        0.1 * np.arange(24, dtype=np.float32).reshape(1, 24, 1, 1) + 0.1, x.node.inputs[0].shape
    )
    (got,) = running.run_kernel(c, kernel, [flat])
    assert (got == got[:, :, :1, :1]).all()


def test_tiles_for_two_threads():
    """13 x 13 and 512 channels: one band, so the panels are shared out."""
    y = biased(convolution(c=512, m=512, size=(13, 13)))
    kernel = winograd.lower(candidate((y,), LAST, LAST, m=4), WIDE)
    assert kernel and kernel.tiles % 2 == 0


@pytest.mark.parametrize("m", WINOGRAD_POINTS)
def test_the_filter_is_exact_for_polynomials(m):
    """G g holds the values of g's polynomial at the points, each over a product of differences."""
    g, points = np.array([0.3, -1.2, 0.7]), WINOGRAD_POINTS[m]
    values = winograd_filter(points) @ g
    for x, value in zip(points, values, strict=False):
        scale = math.prod(x - y for y in points if y != x)
        assert value * scale == pytest.approx(np.polyval(g[::-1], x))
    assert values[-1] == g[2]


def test_the_form_of_stride_two_is_exact():
    """Whole numbers: 1-D outputs of the definition, from seven products."""
    rng = np.random.default_rng(3)
    d, g = rng.integers(-9, 10, 7).astype(float), rng.integers(-9, 10, 3).astype(float)
    inputs = np.array([d[4] - d[0], d[2] + d[4], d[4] - d[2], d[6] - d[2], d[1], d[3], d[5]])
    v = inputs * (WINOGRAD_FORMS[3] @ g)
    got = [v[0] + v[1] + v[2] + v[4], v[1] - v[2] + v[5], v[1] + v[2] + v[3] + v[6]]
    assert got == [d[2 * i : 2 * i + 3] @ g for i in range(3)]


def test_packed_panels():
    """One tap and one channel: G g G^T where the kernel looks for it."""
    k = np.random.default_rng(1).standard_normal((10, 3, 3, 3)).astype(np.float32)
    packed = PACKERS["winograd_panels"](k, 2, 8, 4)
    g = np.array([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]])  # Lavin and Gray
    g[0] *= -1  # their d0 - d2 is our d2 - d0
    want = g @ k[9, 2].astype(np.float64) @ g.T
    size = 16 * 3 * 8
    rest = packed[size:][: 16 * 3 * 4].reshape(16, 3, 4)
    np.testing.assert_allclose(rest[:, 2, 1], want.reshape(-1), rtol=1e-6, atol=1e-7)
    assert not rest[:, :, 2:].any()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "asked",
    [
        case(strides=(3, 3), size=(15, 15)),
        case(strides=(1, 2)),
        case(dilations=(2, 2), pads=((2, 2), (2, 2))),
        case(kernel=(5, 5), pads=((2, 2), (2, 2))),
        case(groups=2),
    ],
)
def test_other_convolutions_are_refused(asked):
    c = candidate((biased(convolution(**asked)),), LAST, LAST, m=4)
    refusal = winograd.lower(c, WIDE)
    assert not winograd.takes(c.region) and not refusal and "3x3" in refusal.reason


def test_columns_as_lanes_are_refused():
    refusal = winograd.lower(candidate((biased(convolution()),), FIRST, FIRST, m=4), WIDE)
    assert not refusal and "innermost" in refusal.reason


def test_a_small_convolution_is_not_offered():
    small = candidate((convolution(c=2, m=2, size=(4, 4)),), LAST, LAST)
    large = candidate((convolution(c=64, m=64, size=(28, 28)),), LAST, LAST)
    machine = Machine(vl=16, registers=32, l2_bytes=1 << 20)
    assert not list(winograd.variants(small, machine))
    assert list(winograd.variants(large, machine)) == [(("m", 2),), (("m", 4),)]
    halved = candidate((convolution(c=64, m=128, size=(208, 208), strides=(2, 2)),), LAST, LAST)
    assert list(winograd.variants(halved, machine)) == [(("m", 3),)]
    deep = candidate((convolution(c=512, m=512, size=(13, 13)),), LAST, LAST)
    assert (("m", 4), ("nv", 2)) in list(winograd.variants(deep, machine))
