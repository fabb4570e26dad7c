"""Operators with many settings, on random shapes and settings, against ONNX Runtime.

Each case runs four ways: ONNX Runtime on the model, the evaluator in f32 and in float64, and ONNX
Runtime on the saved primitives.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from models import assert_near, checked, model_of, node, runtime, values
from onnx import TensorProto

from fissile.errors import ModelError
from fissile.onnx.load import load
from fissile.onnx.save import save

many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**31)


def agree(model, feeds, tolerance=2e-5, saved=True):
    try:
        wanted = runtime(model, feeds)
    except Exception:  # settings that the runtime refuses prove nothing
        assume(False)
    graph = load(model)
    for reference in (False, True):
        for got, want in zip(values(graph, feeds, reference), wanted, strict=True):
            assert_near(got, want, tolerance)
    if saved:
        for got, want in zip(runtime(checked(save(graph)), feeds), wanted, strict=True):
            assert_near(got, want, tolerance)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def windows(draw, dilate=True):
    """Settings of a window over 1 to 3 spatial axes."""
    rank = draw(st.integers(1, 3))
    each = lambda low, high: draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))  # noqa: E731
    kernel, strides = each(1, 3), each(1, 3)
    dilations = each(1, 2) if dilate else [1] * rank
    settings = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto == "NOTSET":
        settings["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        settings["auto_pad"] = auto
    space = [draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(kernel, dilations, strict=True)]
    return settings, space


@many
@given(windows(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.booleans(), seeds)
def test_conv(window, group, inner, outer, bias, seed):
    attributes, space = window
    x = normal(seed, 2, group * inner, *space)
    w = normal(seed + 1, group * outer, inner, *attributes["kernel_shape"])
    constants = {"w": w} | ({"b": normal(seed + 2, group * outer)} if bias else {})
    conv = node("Conv", "x w b" if bias else "x w", "y", group=group, **attributes)
    agree(model_of([conv], {"x": x}, ["y"], constants), {"x": x})


@many
@given(windows(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.booleans(), seeds)
def test_conv_transpose(window, group, inner, outer, extra, seed):
    attributes, space = window
    assume(attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"))
    x = normal(seed, 1, group * inner, *space)
    w = normal(seed + 1, group * inner, outer, *attributes["kernel_shape"])
    if extra:
        attributes = attributes | {"output_padding": [s - 1 for s in attributes["strides"]]}
    layer = node("ConvTranspose", "x w b", "y", group=group, **attributes)
    constants = {"w": w, "b": normal(seed + 2, group * outer)}
    agree(model_of([layer], {"x": x}, ["y"], constants, opset=11), {"x": x})


@many
@given(windows(), st.booleans(), st.booleans(), seeds)
def test_pools(window, ceil, include, seed):
    attributes, space = window
    # the runtime's SAME forgets the dilation of pools
    assume("auto_pad" not in attributes or (not ceil and max(attributes["dilations"]) == 1))
    x = normal(seed, 2, 2, *space)
    layers = [
        node("MaxPool", "x", "top", ceil_mode=int(ceil), **attributes),
        node("AveragePool", "x", "mean", ceil_mode=int(ceil), count_include_pad=int(include),
             **attributes),
    ]  # fmt: skip
    agree(model_of(layers, {"x": x}, ["top", "mean"], opset=19), {"x": x})


@many
@given(st.integers(0, 3), st.integers(0, 3), st.data(), seeds)
def test_matmul_broadcasts(left, right, data, seed):
    shared = [data.draw(st.integers(1, 3)) for _ in range(max(left, right))]
    k = data.draw(st.integers(1, 4))

    def batch(rank):
        return (
            [data.draw(st.sampled_from([1, s])) for s in shared[len(shared) - rank :]]
            if rank
            else []
        )

    a = normal(seed, *batch(left), data.draw(st.integers(1, 4)), k)
    b = normal(seed + 1, *batch(right), k, data.draw(st.integers(1, 4)))
    if data.draw(st.booleans()):
        a = a[(0,) * left][0]
    if data.draw(st.booleans()):
        b = b[(0,) * right][:, 0]
    agree(model_of([node("MatMul", "a b", "y")], {"a": a, "b": b}, ["y"]), {"a": a, "b": b})


@few
@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([0.0, 1.0, 2.0]),
    seeds,
)
def test_gemm(trans_a, trans_b, alpha, beta, seed):
    a, b = (
        normal(seed, *((3, 2) if trans_a else (2, 3))),
        normal(seed, *((4, 3) if trans_b else (3, 4))),
    )
    layer = node(
        "Gemm", "a b c", "y", alpha=alpha, beta=beta, transA=int(trans_a), transB=int(trans_b)
    )
    c = normal(seed + 2, 4)
    agree(model_of([layer], {"a": a}, ["y"], {"b": b, "c": c}), {"a": a})


COORDINATES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]


@many
@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(COORDINATES),
    st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    st.booleans(),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    seeds,
)
def test_resize_to_sizes(mode, coordinates, nearest, exclude, extents, seed):
    x = normal(seed, 1, 2, *extents[:2])
    exclude = int(exclude and mode == "cubic")
    layer = node("Resize", "x _ _ sizes", "y", mode=mode, nearest_mode=nearest,
                 coordinate_transformation_mode=coordinates, exclude_outside=exclude)  # fmt: skip
    sizes = np.array([1, 2, *(2 * e for e in extents[2:])], np.int64)
    agree(model_of([layer], {"x": x}, ["y"], {"sizes": sizes}, opset=18), {"x": x}, 1e-4)


@few
@given(
    st.sampled_from(["linear", "cubic"]),
    st.sampled_from([0.4, 0.5, 0.75, 1.5, 2.0]),
    st.booleans(),
    seeds,
)
def test_resize_by_scales(mode, scale, antialias, seed):
    x = normal(seed, 1, 1, 7, 9)
    layer = node("Resize", "x _ scales", "y", mode=mode, antialias=int(antialias))
    scales = np.array([1, 1, scale, scale], np.float32)
    agree(model_of([layer], {"x": x}, ["y"], {"scales": scales}, opset=18), {"x": x}, 1e-4)


@many
@given(st.data(), seeds)
def test_slice(data, seed):
    shape = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    x = normal(seed, *shape)
    steps = np.array([data.draw(st.sampled_from([-3, -1, 1, 2])) for _ in shape], np.int64)
    far = [st.sampled_from([2**31, 2**63 - 1] if s > 0 else [-(2**31), -(2**63)]) for s in steps]
    rows = [np.array([data.draw(st.integers(-8, 8) | f) for f in far], np.int64) for _ in range(2)]
    axes = np.arange(len(shape))
    constants = {"b": rows[0], "e": rows[1], "a": axes, "s": steps}
    layer = node("Slice", "x b e a s", "y")
    saved = 0 not in x.shape
    agree(model_of([layer], {"x": x}, ["y"], constants), {"x": x}, saved=saved)


@many
@given(st.sampled_from(["constant", "reflect", "edge"]), st.data(), seeds)
def test_pad(mode, data, seed):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    low = -1 if mode == "constant" else 0
    high = [s - 1 if mode == "reflect" else 3 for s in shape]
    pads = [
        data.draw(st.integers(low if s > 2 else 0, h))
        for s, h in zip(shape * 2, high * 2, strict=True)
    ]
    x = normal(seed, *shape)
    constants = {"p": np.array(pads, np.int64), "v": np.float32(1.5).reshape(())}
    agree(model_of([node("Pad", "x p v", "y", mode=mode)], {"x": x}, ["y"], constants), {"x": x})


@few
@given(
    st.sampled_from([8, 11, 13]),
    st.integers(-3, 2),
    st.sampled_from(["Softmax", "LogSoftmax"]),
    seeds,
)
def test_softmax_of_each_opset(opset, axis, op, seed):
    x = normal(seed, 2, 3, 4) * 20
    agree(model_of([node(op, "x", "y", axis=max(axis, 0) if opset < 11 else axis)], {"x": x}, ["y"],
                   opset=opset), {"x": x})  # fmt: skip


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"]


@many
@given(st.sampled_from(REDUCTIONS), st.lists(st.integers(-3, 2), max_size=3), st.booleans(), seeds)
def test_reductions_by_attribute(kind, axes, keep, seed):
    assume(len({a % 3 for a in axes}) == len(axes))
    x = normal(seed, 2, 3, 4)
    attributes = {"axes": axes} if axes else {}
    layer = node(f"Reduce{kind}", "x", "y", keepdims=int(keep), **attributes)
    agree(model_of([layer], {"x": x}, ["y"], opset=11), {"x": x})


@few
@given(
    st.sampled_from(["forward", "reverse", "bidirectional"]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_lstm(direction, batch, time, initial, peephole, seed):
    d, inputs, hidden = 2 if direction == "bidirectional" else 1, 3, 4
    x = normal(seed, time, batch, inputs)
    constants = {
        "w": normal(seed + 1, d, 4 * hidden, inputs),
        "r": normal(seed + 2, d, 4 * hidden, hidden),
        "b": normal(seed + 3, d, 8 * hidden),
    }
    names = "x w r b _"
    if initial:
        constants |= {
            "h": normal(seed + 4, d, batch, hidden),
            "c": normal(seed + 5, d, batch, hidden),
        }
    if peephole:
        constants |= {"p": normal(seed + 6, d, 3 * hidden)}
    names += (" h c" if initial else " _ _") + (" p" if peephole else "")
    layer = node("LSTM", names, "y y_h y_c", hidden_size=hidden, direction=direction)
    agree(model_of([layer], {"x": x}, ["y", "y_h", "y_c"], constants), {"x": x})


@few
@given(
    st.sampled_from(["GRU", "RNN"]),
    st.booleans(),
    st.lists(st.integers(1, 4), min_size=2, max_size=2),
    st.sampled_from(["forward", "reverse"]),
    seeds,
)
def test_gru_and_rnn_with_lengths(op, linear, lengths, direction, seed):
    gates, hidden = (3, 2) if op == "GRU" else (1, 2)
    x = normal(seed, 4, 2, 3)
    constants = {
        "w": normal(seed + 1, 1, gates * hidden, 3),
        "r": normal(seed + 2, 1, gates * hidden, hidden),
        "b": normal(seed + 3, 1, 2 * gates * hidden),
        "n": np.array(lengths, np.int32),
        "h": normal(seed + 4, 1, 2, hidden),
    }
    own = {"linear_before_reset": int(linear)} if op == "GRU" else {}
    layer = node(op, "x w r b n h", "y y_h", hidden_size=hidden, direction=direction, **own)
    agree(model_of([layer], {"x": x}, ["y", "y_h"], constants), {"x": x})


@few
@given(st.sampled_from(["GatherElements", "ScatterElements"]), st.integers(-3, 2), seeds)
def test_elements_by_run_time_index(op, axis, seed):
    rng = np.random.default_rng(seed)
    x, n = normal(seed, 3, 4, 5), (3, 4, 5)[axis]
    index = np.stack([rng.permutation(n)[:3] for _ in range(4)])[:, None, :].repeat(2, 1)
    index = np.moveaxis(index, 2, axis)[tuple(slice(0, s) for s in x.shape)].astype(np.int64)
    updates = normal(seed + 1, *index.shape)
    feeds = {"x": x, "i": index - n * rng.integers(0, 2, index.shape), "u": updates}
    names = "x i u" if op.startswith("S") else "x i"
    feeds = {k: feeds[k] for k in names.split()}
    agree(model_of([node(op, names, "y", axis=axis)], feeds, ["y"]), feeds)


@few
@given(st.sampled_from([(2, 3, 4, 5), (1, 4, 6), (3, 4)]), seeds)
def test_batch_norm(shape, seed):
    x, c = normal(seed, *shape), shape[1]
    constants = {n: normal(seed + k, c) for k, n in enumerate("sbm")} | {"v": normal(seed, c) ** 2}
    layer = node("BatchNormalization", "x s b m v", "y", epsilon=1e-3)
    agree(model_of([layer], {"x": x}, ["y"], constants), {"x": x})


def test_unrolling_has_a_limit():
    constants = {"w": np.ones((1, 4, 1), np.float32), "r": np.ones((1, 4, 1), np.float32)}
    layer = node("LSTM", "x w r", "y", name="long", hidden_size=1)
    model = model_of([layer], {"x": (600, 1, 1)}, ["y"], constants)
    with pytest.raises(ModelError, match=r"'long'.*600 time steps exceed"):
        load(model)


def test_maxpool_of_integers_and_its_indices():
    x = np.random.default_rng(0).integers(-9, 9, (1, 2, 6, 7)).astype(np.int8)
    pool = node("MaxPool", "x", "y i", kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1])
    outputs = {"y": TensorProto.INT8, "i": TensorProto.INT64}
    agree(model_of([pool], {"x": x}, outputs), {"x": x}, saved=False)
