"""What rules must not do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import (
    abs_,
    clip,
    concat,
    constant,
    contract,
    conv,
    exp,
    make,
    maximum,
    minimum,
    pad,
    softplus,
    tanh,
    window,
)
from fissile.ir.types import F16, F32, I8, I32, U8, DType, of
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import saturate
from fissile.select.spellings import for_runtimes, rewritten

rng = np.random.default_rng(0)


def graph(*outputs: Value) -> Graph:
    inputs = tuple(n.value for n in Graph((), outputs, (), ()).nodes if n.prim == "input")
    names = tuple(f"x{i}" for i in range(len(inputs)))
    return Graph(inputs, outputs, names, tuple(f"y{i}" for i in range(len(outputs))))


def weights(*shape: int, dtype: DType = F32) -> Value:
    return constant(rng.standard_normal(shape), dtype)


def same_bits(g: Graph, feeds: list[np.ndarray]) -> None:
    want = evaluate(g, feeds)
    for other in (*(s.graph for s in rewritten(g, RULES.values()).spellings),
                  for_runtimes(g, RULES.values())):  # fmt: skip
        for a, b in zip(want, evaluate(other, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def test_whole_numbers_that_wrap_around_are_not_in_order():
    """127 + 1 is -128 in i8: the largest of x + 1 is not the largest of x, plus 1."""
    x = placeholder(of((1, 1, 4, 4), I8))
    y = window("window_max", make("add", [x, constant(np.int8(1))])[0], (2, 2), (2, 2))
    z = window("window_max", make("mul", [x, constant(np.int8(2))])[0], (2, 2), (2, 2))
    same_bits(graph(y, z), [rng.integers(-128, 128, (1, 1, 4, 4)).astype(np.int8)])


@pytest.mark.parametrize("dtype", [U8, I32])
def test_whole_numbers_wrap_around_alike(dtype):
    x = placeholder(of((3, 4), dtype))
    k, m = (constant(rng.integers(1, 200, (4,)), dtype) for _ in range(2))
    y = make("mul", [make("add", [make("mul", [x, k])[0], m])[0], k])[0]
    z = make("sub", [make("sub", [x, k])[0], m])[0]
    info = np.iinfo(dtype.numpy)
    same_bits(graph(y, z), [rng.integers(info.min, info.max, (3, 4)).astype(dtype.numpy)])


def test_half_precision_is_rounded_as_it_was():
    x = placeholder(of((4, 8), F16))
    y = contract(x, weights(8, 8, dtype=F16), "ab,bc->ac")
    g = graph(contract(y * 3.0 + 1.0, weights(8, 8, dtype=F16), "ab,bc->ac"))
    same_bits(g, [rng.standard_normal((4, 8)).astype(np.float16)])


def test_a_bias_does_not_pass_a_padding():
    """The border would lack it."""
    x = placeholder(of((1, 3, 5, 5)))
    v = contract(x, weights(4, 3), "nchw,mc->nmhw") + weights(4, 1, 1)
    y = conv(pad(v, (0, 0, 1, 1), (0, 0, 1, 1)), weights(2, 4, 3, 3), (1, 1), (1, 1))
    g = graph(y)
    feeds = [rng.standard_normal((1, 3, 5, 5))]
    (want,) = evaluate(g, feeds, reference=True)
    for s in rewritten(g, RULES.values()).spellings:
        np.testing.assert_allclose(evaluate(s.graph, feeds, True)[0], want, atol=1e-5)


def test_a_padding_with_another_number_is_no_padding_with_zeros():
    x = placeholder(of((2, 3)))
    y = contract(pad(x, (0, 1), (0, 0), "constant", 2.0), weights(4, 5), "ab,bc->ac")
    g = graph(y)
    feeds = [rng.standard_normal((2, 3))]
    (want,) = evaluate(g, feeds, reference=True)
    for s in rewritten(g, RULES.values()).spellings:
        np.testing.assert_allclose(evaluate(s.graph, feeds, True)[0], want, atol=1e-5)


def test_nothing_times_zero_stays_not_a_number():
    x = placeholder(of((3,)))
    same_bits(
        graph(x * 0.0, x - x, maximum(x, 0.0) * 0.0), [np.array([np.nan, np.inf, 1], np.float32)]
    )


def test_the_sign_of_zero_is_kept():
    x = placeholder(of((2,)))
    g = graph(x + 0.0, x + (-0.0), x - 0.0)
    feeds = [np.array([-0.0, 0.0], np.float32)]
    want = evaluate(g, feeds)
    for s in rewritten(g, RULES.values()).spellings:
        for a, b in zip(want, evaluate(s.graph, feeds), strict=True):
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_outputs_that_are_inputs_or_constants():
    x = placeholder(of((2, 3)))
    g = graph(x, constant([1.0, 2.0]), x * 1.0, make("neg", [make("neg", [x])[0]])[0])
    same_bits(g, [rng.standard_normal((2, 3)).astype(np.float32)])


def test_a_clip_whose_bounds_are_swapped_gives_the_upper_one():
    """clip(x, 5, 1) is 1, so max(clip(x, 5, 1), 3) is 3, and clip(x, 5, 1) is not max(x, 5)."""
    x = placeholder(of((4,)))
    swapped = clip(x, constant(np.float32(5)), constant(np.float32(1)))
    bounded = clip(tanh(x), constant(np.float32(7)), constant(np.float32(2)))
    g = graph(maximum(swapped, 3.0), bounded)
    same_bits(g, [np.array([-9, 0.5, 2, 9], np.float32)])


def test_bounds_hold_where_a_clip_changes_everything():
    """Values that lie outside of it altogether come out as one of its ends."""
    x = placeholder(of((4,)))
    low, high = constant(np.float32(-1)), constant(np.float32(1))
    g = graph(
        maximum(clip(maximum(x, 2.0), low, high), 1.5),
        minimum(clip(minimum(x, -2.0), low, high), -1.5),
        abs_(clip(softplus(x), constant(np.float32(-0.9)), constant(np.float32(-0.1)))),
        clip(maximum(tanh(x), 2.0), constant(np.float32(-1.75)), constant(np.float32(1.75))),
    )
    same_bits(g, [np.array([-9, 0.5, 2, 9], np.float32)])


def test_what_is_no_number_bounds_nothing():
    x = placeholder(of((1, 2)))
    some = constant(np.array([[np.nan, -5.0]], np.float32))
    same_bits(graph(abs_(concat([exp(x), some], 1))), [np.ones((1, 2), np.float32)])


def test_empty_tensors():
    x = placeholder(of((0, 4)))
    y = contract(concat([x, x], 0), weights(4, 3), "ab,bc->ac") * 2.0
    same_bits(graph(y, make("reshape", [y], shape=(3, 0))[0]), [np.zeros((0, 4), np.float32)])


def test_pools_of_padding_alone():
    """A window that holds nothing but padding is minus infinity, which f may not keep."""
    x = placeholder(of((1, 1, 2, 2)))
    wide = pad(maximum(x, 0.0), (0, 0, 3, 3), (0, 0, 3, 3), value=-math.inf)
    g = graph(window("window_max", wide, (2, 2), (1, 1)))
    same_bits(g, [rng.standard_normal((1, 1, 2, 2)).astype(np.float32)])


def test_the_order_of_earlier_work_changes_nothing():
    """Nodes that other graphs made before are no older for that."""

    def text() -> list[str]:
        x = placeholder(of((2, 3)), id=987654)
        w, v = (constant(np.full((3, 3), k), F32) for k in (2.0, 3.0))
        y = contract(contract(x * 2.0, w, "ab,bc->ac"), v, "ab,bc->ac") + 1.0
        found = saturate(graph(y), RULES.values())
        keep.append(found)
        return [repr(n) for n in found.classes.nodes]

    keep: list = []
    first = text()
    assert text() == first
