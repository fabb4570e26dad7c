"""Chains against numpy in float64, against their stages as kernels of their own, for any partition
of tiles and any rows of a tile; and the arithmetic of boxes against closed forms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Token, channels_last, row_major
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls import chain, contractions, conv, rows, windows
from fissile.targets.cpu.impls.boxes import Cut, Reach, reach
from fissile.targets.cpu.impls.split import split
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Illegal

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, region_of, run_kernel
from sliding_cases import FLAGS, LAST, NARROW, WIDE, candidate, image, noise, padded, weights


def lowered(c: Candidate, machine: Machine) -> Kernel:
    kernel = chain.lower(c, machine)
    assert isinstance(kernel, Kernel), kernel
    return kernel


def check(
    c: Candidate, machine: Machine = WIDE, tolerance: float = 1e-5, parts: Sequence[Value] = ()
) -> None:
    """Values of numpy; the same bits whatever the rows of a tile, the spans and the partition, and
    as kernels of their own that end in `parts` give."""
    inputs = [noise(*t.value.shape, seed=i) for i, t in enumerate(c.needs)]
    kernel = lowered(c, machine)
    first = run_kernel(c, kernel, inputs, flags=FLAGS[machine.vl])
    for got, want in zip(first, expected(c, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())
    for params in ((("rows", 1), ("spans", 1)), (("rows", 3), ("spans", 2))):
        other = Candidate(c.region, c.impl, params, c.needs, c.gives)
        for a, b in zip(
            first,
            run_kernel(other, lowered(other, machine), inputs, flags=FLAGS[machine.vl]),
            strict=True,
        ):
            assert a.tobytes() == b.tobytes(), params
    if parts:
        apart = _apart(c, inputs, parts, machine)
        for a, b in zip(first, apart, strict=True):
            np.testing.assert_array_equal(a, b)


def _apart(c: Candidate, inputs, parts: Sequence[Value], machine: Machine) -> list[np.ndarray]:
    """One kernel after another, each up to one of these values."""
    known = {t.value: (t, array) for t, array in zip(c.needs, inputs, strict=True)}
    for stage in split(c.region):

        def token(v: Value) -> Token:
            outer = {t.value: t for t in (*c.needs, *c.gives)}
            return outer.get(v) or Token(v, channels_last(4) if v.rank == 4 else row_major(v.rank))

        needs = tuple(map(token, stage.region.tensors))
        gives = tuple(map(token, stage.region.outputs))
        part = Candidate(stage.region, "part", (), needs, gives)
        kernel = next(
            k for m in (contractions, conv, windows, rows) if (k := m.lower(part, machine))
        )
        got = run_kernel(
            part, kernel, [known[t.value][1] for t in needs], pieces=1, flags=FLAGS[machine.vl]
        )
        known |= {t.value: (t, array) for t, array in zip(gives, got, strict=True)}
    return [known[t.value][1] for t in c.gives]


def pointwise(x: Value, m: int, act: Callable[[Value], Value] | None = None) -> Value:
    y = p.conv(x, weights(m, x.shape[1], 1, 1), (1, 1), (1, 1)) + weights(m, 1, 1)
    return act(y) if act else y


def depthwise(x: Value, k: int, stride: int, act: Callable[[Value], Value] | None = None) -> Value:
    c, pad = x.shape[1], (k // 2, k // 2)
    y = p.conv(padded(x, (pad, pad)), weights(c, 1, k, k), (stride, stride), (1, 1), c)
    return act(y + weights(c, 1, 1)) if act else y + weights(c, 1, 1)


def dense(x: Value, m: int, k: int, stride: int = 1) -> Value:
    pad = (k // 2, k // 2)
    y = p.conv(padded(x, (pad, pad)), weights(m, x.shape[1], k, k), (stride, stride), (1, 1))
    return p.clip(y + weights(m, 1, 1), 0.0, 6.0)


def relu6(x: Value) -> Value:
    return p.clip(x, 0.0, 6.0)


def hardswish(x: Value) -> Value:
    return x * p.clip(x * (1 / 6) + 0.5, 0.0, 1.0)


def gelu(x: Value) -> Value:
    return x * (p.erf(x * 0.70710678) + 1.0) * 0.5


def layer_norm(x: Value) -> Value:
    axis = (x.rank - 1,)
    centred = x - p.reduce_mean(x, axis)
    scale = p.rsqrt(p.reduce_mean(centred * centred, axis) + 1e-5)
    return centred * scale * weights(x.shape[-1]) + weights(x.shape[-1])


def matmul(x: Value, m: int) -> Value:
    return p.contract(x, weights(x.shape[-1], m), "abk,kn->abn") + weights(m)


# ---------------------------------------------------------------- feature maps


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize(("k", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_inverted_residuals(machine: Machine, k: int, stride: int) -> None:
    x = image(2, 24, 13, 11)
    y = pointwise(depthwise(pointwise(x, 48, relu6), k, stride, hardswish), 24)
    y = y + x if stride == 1 else y
    check(candidate((y,), LAST, LAST), machine, parts=(y,))


@pytest.mark.parametrize("channels", [20, 32])
def test_depthwise_then_pointwise_and_back(channels: int) -> None:
    x = image(1, channels, 14, 9)
    y = pointwise(depthwise(x, 3, 1, relu6), 40)
    check(candidate((y,), LAST, LAST), parts=(y,))
    z = depthwise(pointwise(x, 40, relu6), 3, 2)
    check(candidate((z,), LAST, LAST), parts=(z,))


def test_convolutions_in_a_line() -> None:
    x = image(2, 8, 17, 10)
    y = dense(dense(x, 16, 3), 24, 3)
    check(candidate((y,), LAST, LAST), parts=(y,))
    z = dense(dense(dense(x, 16, 3, 2), 16, 5), 20, 3)
    check(candidate((z,), LAST, LAST), parts=(z,))


def test_pool_after_a_convolution() -> None:
    y = padded(dense(image(1, 8, 15, 12), 32, 3), ((1, 1), (1, 1)), value=-np.inf)
    z = p.window("window_max", y, (3, 3), (2, 2))
    check(candidate((z,), LAST, LAST))


def test_a_value_between_stages_is_read_twice() -> None:
    """By the window and, at its own place, by the end."""
    x = image(1, 16, 12, 12)
    a = pointwise(x, 32, relu6)
    y = pointwise(depthwise(a, 3, 1, relu6), 32) + a
    check(candidate((y,), LAST, LAST), parts=(y,))


def test_a_value_between_stages_is_given_where_no_window_follows() -> None:
    x = image(1, 16, 12, 12)
    a = pointwise(x, 32, relu6)
    y = pointwise(a, 24)
    check(candidate((a, y), LAST, LAST), parts=(a, y))
    z = depthwise(a, 3, 1)
    refused = chain.lower(candidate((a, z), LAST, LAST), WIDE)
    assert not refused and "twice" in refused.reason


@settings(max_examples=12, deadline=None)
@given(
    n=st.integers(1, 2), h=st.integers(3, 19), w=st.integers(3, 12), c=st.integers(1, 20),
    m=st.integers(1, 40), k=st.sampled_from((1, 3, 5)), stride=st.integers(1, 2),
    first=st.booleans(), last=st.booleans(),
)  # fmt: skip
def test_any_extents(n, h, w, c, m, k, stride, first, last) -> None:
    x = image(n, 4 * c, h, w)
    y = pointwise(x, 4 * m, hardswish) if first else x
    y = depthwise(y, k, stride, relu6)
    y = pointwise(y, 4 * m) if last or not first else y
    check(candidate((y,), LAST, LAST))


# ---------------------------------------------------------------- rows of matrices


def test_two_layer_perceptron() -> None:
    x = placeholder(of([1, 37, 48]))
    y = matmul(gelu(matmul(x, 100)), 48) + x
    check(candidate_of((y,)), parts=(y,))
    check(candidate_of((layer_norm(y),)), parts=(y,))


def test_normalisation_before_a_contraction() -> None:
    x = placeholder(of([2, 21, 40]))
    y = gelu(matmul(layer_norm(x), 70))
    check(candidate_of((y,)), parts=(y,))


def test_residual_and_normalisation_after_a_contraction() -> None:
    x, r = placeholder(of([1, 33, 40])), placeholder(of([1, 33, 64]))
    s = matmul(x, 64) + r
    y = layer_norm(s)
    check(candidate_of((s, y)), parts=(s, y))
    check(candidate_of((y,)), parts=(y,))


def test_softmax_of_scores() -> None:
    s = matmul(placeholder(of([1, 33, 40])), 50)
    e = p.exp(s - p.reduce_max(s, (2,)))
    check(candidate_of((e / p.reduce_sum(e, (2,)),)))


def test_mixed_feed_forward_of_tokens_and_maps() -> None:
    """Segformer: tokens, a depthwise convolution of the map that they form, tokens."""
    x = placeholder(of([1, 63, 24]))
    a = p.reshape(p.transpose(matmul(x, 48), (0, 2, 1)), (1, 48, 9, 7))
    b = p.transpose(p.reshape(depthwise(a, 3, 1), (1, 48, 63)), (0, 2, 1))
    y = matmul(gelu(b), 24) + x
    check(candidate_of((y,)))


# ---------------------------------------------------------------- refusals and boxes


def test_refusals_have_reasons() -> None:
    def refusal(c: Candidate, machine: Machine = WIDE) -> str:
        found = chain.lower(c, machine)
        assert not found
        return found.reason  # pyright: ignore

    x = image(1, 64, 64, 64)
    y = depthwise(pointwise(x, 512, relu6), 3, 1)
    small = replace(WIDE, l2_bytes=1 << 15)
    assert "second cache" in refusal(candidate((y,), LAST, LAST), small)
    assert "one anchor" in refusal(candidate((pointwise(x, 16),), LAST, LAST))
    side = pointwise(x, 16) + dense(x, 16, 3)
    assert "side by side" in refusal(candidate((side,), LAST, LAST))
    t = placeholder(of([1, 8, 8]))
    turned = p.contract(matmul(t, 8), weights(8, 8), "akm,kn->amn")
    assert refusal(candidate_of((turned,)))


@pytest.mark.parametrize(("k", "stride", "dilation", "pad"), [
    (1, 1, 1, 0), (3, 1, 1, 1), (3, 2, 1, 1), (5, 1, 1, 2), (5, 2, 1, 0), (3, 1, 2, 2),
    (7, 2, 1, 3),
])  # fmt: skip
def test_boxes_of_windows_follow_the_closed_form(k, stride, dilation, pad) -> None:
    """Rows stride h - pad .. stride h - pad + dilation (k - 1), whatever the columns do."""
    x = image(2, 6, 15, 12)
    y = p.conv(padded(x, ((pad, pad), (pad, pad))), weights(8, 6, k, k), (stride, stride),
               (dilation, dilation))  # fmt: skip
    region = region_of(y)
    last = channels_last(4)
    found = reach(region, Cut(Token(y, last), 2, y.shape[2]), Cut(Token(x, last), 2, 15))
    assert found == Reach(stride, -pad, -pad + dilation * (k - 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=4),
       st.integers(1, 9))  # fmt: skip
def test_rows_of_a_stack_of_windows(layers: list[tuple[int, int]], tile: int) -> None:
    """The rows of layer l that a tile of the last needs: t_l = (t_{l+1} - 1) s + k, which for equal
    strides of one is t + sum (k - 1), the receptive field of fused layers."""
    length = tile
    for k, s in reversed(layers):
        length = Reach(s, 0, k - 1).rows(length)
    brute = {0: set(range(tile))}
    for i, (k, s) in enumerate(reversed(layers)):
        brute[i + 1] = {s * h + j for h in brute[i] for j in range(k)}
    needed = brute[len(layers)]
    assert max(needed) - min(needed) + 1 == length
    if all(s == 1 for _, s in layers):
        assert length == tile + sum(k - 1 for k, _ in layers)


def test_boxes_of_moves_and_sums() -> None:
    x = placeholder(of([1, 6, 4, 5]))
    y = p.transpose(p.reshape(x, (1, 6, 20)), (0, 2, 1)) * 2.0
    region = region_of(y)
    of_y, of_x = Cut(Token(y, row_major(3)), 1, 4), Cut(Token(x, channels_last(4)), 1, 4)
    assert reach(region, of_y, of_x) == Reach()
    z = x - p.reduce_mean(x, (2,))  # over the lines: every line needs all, and its own
    with pytest.raises(Illegal):
        reach(region_of(z), Cut(Token(z, channels_last(4)), 1, 4), of_x)
    total = p.reduce_sum(x, (2,)) + weights(1, 6, 4, 5)
    whole = reach(region_of(total), Cut(Token(total, channels_last(4)), 1, 4), of_x)
    assert whole == Reach(0, 0, 3)
