"""Convolution kernels against numpy in float64 and ONNX Runtime."""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.types import F64, of
from fissile.targets.cpu.impls import conv
from fissile.targets.cpu.impls.lines import plus
from fissile.targets.cpu.machine import Machine, _caches, _vectors, this_machine
from fissile.targets.cpu.packing import PACKERS

sys.path.insert(0, str(Path(__file__).parent))
import running
from sliding_cases import (
    BOTH,
    FIRST,
    FLAGS,
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


def convolution(
    c: int = 16,
    m: int = 16,
    size: tuple[int, ...] = (14, 14),
    kernel: tuple[int, ...] = (3, 3),
    strides: tuple[int, ...] = (1, 1),
    dilations: tuple[int, ...] = (1, 1),
    pads: tuple[tuple[int, int], ...] = ((1, 1), (1, 1)),
    groups: int = 1,
    n: int = 1,
) -> Value:
    x = padded(image(n, c, *size), pads)
    return p.conv(x, weights(m, c // groups, *kernel), strides, dilations, groups)


def biased(y: Value) -> Value:
    return y + weights(1, y.shape[1], *[1] * (y.rank - 2))


NONE = ((0, 0), (0, 0))
SHAPES = {
    "one channel in and out": case(c=1, m=1),
    "three channels, stride 2, 7x7": case(
        c=3, m=24, size=(57, 57), kernel=(7, 7), strides=(2, 2), pads=((3, 3), (3, 3))
    ),
    "odd channels": case(c=33, m=7, size=(13, 13)),
    "many channels": case(c=64, m=100, size=(14, 28)),
    "seven columns": case(c=24, m=48, size=(7, 7)),
    "57 columns": case(c=16, m=16, size=(9, 57)),
    "one column": case(c=24, m=16, size=(13, 1), kernel=(3, 1), pads=((1, 1), (0, 0))),
    "uneven pads": case(size=(15, 14), strides=(2, 2), pads=((0, 1), (2, 0))),
    "stride 3": case(size=(29, 29), strides=(3, 3), n=2),
    "dilation": case(size=(17, 17), dilations=(2, 2), pads=((2, 2), (2, 2))),
    "dilation along one axis": case(size=(17, 17), dilations=(1, 2), strides=(2, 1)),
    "1x1": case(c=64, m=48, kernel=(1, 1), pads=NONE),
    "1x1, stride 2": case(c=256, m=32, size=(28, 28), kernel=(1, 1), strides=(2, 2), pads=NONE),
    "1xk": case(kernel=(1, 5), pads=((0, 0), (2, 2)), n=2),
    "pixels that meet in the cache": case(c=512, m=16, size=(7, 7), strides=(1, 1)),
    "2 groups": case(c=16, m=48, groups=2),
    "4 groups of odd size": case(c=12, m=20, groups=4, size=(9, 13)),
    "depthwise": case(c=32, m=32, groups=32),
    "depthwise, stride 2": case(c=48, m=48, groups=48, strides=(2, 2), size=(15, 16), n=2),
    "depthwise, odd channels": case(c=24, m=24, groups=24, size=(13, 13)),
    "depthwise 5x5 on 4x3": case(
        c=16, m=16, groups=16, size=(4, 3), kernel=(5, 5), pads=((2, 2), (2, 2))
    ),
    "depthwise, dilation": case(
        c=16, m=16, groups=16, dilations=(2, 3), pads=((2, 2), (3, 3)), size=(11, 12)
    ),
    "depthwise 7x7": case(c=16, m=16, groups=16, kernel=(7, 7), pads=((3, 3), (3, 3))),
    "depthwise on many strips, odd channels": case(
        c=40, m=40, groups=40, size=(6, 61), strides=(1, 2), pads=((1, 1), (2, 2)), kernel=(3, 5)
    ),
    "depthwise with a wide pad": case(
        c=20, m=20, groups=20, size=(5, 40), kernel=(1, 9), dilations=(1, 5),
        pads=((0, 0), (21, 20)),
    ),
    "depthwise with windows beside the map": case(
        c=16, m=16, groups=16, size=(5, 3), kernel=(3, 3), pads=((1, 1), (4, 7))
    ),
    "depthwise, two results a channel": case(c=16, m=32, groups=16),
    "one axis": case(
        c=24, m=33, size=(40,), kernel=(5,), strides=(2,), dilations=(1,), pads=((2, 1),), n=2
    ),
    "one axis, depthwise": case(
        c=32, m=32, groups=32, size=(50,), kernel=(3,), strides=(1,), dilations=(2,), pads=((2, 2),)
    ),
    "one axis, stride longer than the kernel": case(
        c=3, m=24, size=(39,), kernel=(2,), strides=(3,), dilations=(1,), pads=((2, 0),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, where):
    check(conv.lower, biased(convolution(**SHAPES[shape])), where)


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize(
    "shape",
    [
        "odd channels",
        "seven columns",
        "depthwise, stride 2",
        "one axis",
        "depthwise on many strips, odd channels",
        "depthwise 7x7",
    ],
)
def test_vectors_of_eight(shape, where):
    check(conv.lower, biased(convolution(**SHAPES[shape])), where, machine=NARROW)


@pytest.mark.parametrize(("needs", "gives"), [(FIRST, LAST), (LAST, FIRST)])
@pytest.mark.parametrize("shape", ["three channels, stride 2, 7x7", "many channels", "depthwise"])
def test_another_layout_than_the_input(shape, needs, gives):
    check(conv.lower, biased(convolution(**SHAPES[shape])), needs, gives)


def reflected(c: int) -> Value:
    return padded(image(1, c, 12, 13), ((1, 1), (1, 1)), "reflect")


def activated(c: int) -> Value:
    return padded(p.maximum(image(1, c, 12, 13), 0.25), ((1, 1), (1, 1)), value=1.5)


def joined(c: int) -> Value:
    parts = [image(1, c // 4, 12, 13), p.sigmoid(image(1, c - c // 4, 12, 13))]
    return padded(p.concat(parts, 1), ((1, 1), (1, 1)))


def upsampled(c: int) -> Value:
    """Nearest, by two, with a reflect pad behind it."""
    x = image(1, c, 6, 7)
    for axis in (2, 3):
        x = p.gather(x, p.constant(np.arange(2 * x.shape[axis]) // 2), axis)
    return padded(x, ((1, 1), (1, 1)), "reflect")


def cut(c: int) -> Value:
    return padded(p.slice_(image(1, c + 8, 14, 13), (0, 4, 1, 0), (1, c, 12, 13)), ((1, 1), (2, 0)))


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("prologue", [reflected, activated, joined, upsampled, cut])
def test_prologues(prologue, groups, where):
    k = weights(32, 32 // groups, 3, 3)
    check(conv.lower, biased(p.conv(prologue(32), k, (1, 1), (1, 1), groups)), where)


def mish(y: Value) -> Value:
    y = biased(y) + image(*y.shape)
    return y * p.tanh(p.softplus(y))


def gated(y: Value) -> Value:
    y = biased(y)
    return y * p.sigmoid(y) * image(1, y.shape[1], 1, 1)


def hardswish(y: Value) -> Value:
    y = biased(y)
    return y * p.clip(y + 3.0, 0.0, 6.0) * (1 / 6)


EPILOGUES = [mish, gated, hardswish]


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize("groups", [1, 24])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue, groups, where):
    check(conv.lower, epilogue(convolution(c=24, m=24, groups=groups, size=(13, 14))), where)


@pytest.mark.parametrize("where", BOTH)
def test_two_outputs(where):
    y = biased(convolution())
    check(conv.lower, (y, p.maximum(y, 0.0)), where)


def test_tokens_of_a_patch_embedding():
    """[n, c, h, w] -> [n, h w, c]: the channels stay innermost."""
    y = biased(convolution(c=3, m=40, size=(20, 25), kernel=(5, 5), strides=(5, 5), pads=NONE))
    flat = p.transpose(p.reshape(y, (1, 40, 20)), (0, 2, 1))
    check(conv.lower, p.maximum(flat, 0.0), FIRST)


def test_a_residual_in_the_other_layout():
    y = biased(convolution(c=16, m=24))
    r = image(*y.shape)
    c = running.candidate_of((y + r,))
    layouts = {v: running.row_major(4) for v in c.region.tensors} | {y + r: candidate(
        (y + r,), LAST, LAST).gives[0].layout}  # fmt: skip
    c = running.candidate_of((y + r,), layouts)
    inputs = [noise(*t.value.shape) for t in c.needs]
    (got,) = running.run_kernel(c, conv.lower(c, WIDE), inputs)
    np.testing.assert_allclose(got, running.expected(c, inputs)[0], atol=2e-5)


@pytest.mark.parametrize(
    "asked", [case(px=2, py=2, nv=2), case(rows=2, py=1, nv=3), case(splits=2, nv=1)]
)
def test_params_choose_the_tile(asked):
    check(conv.lower, biased(convolution(c=16, m=64)), LAST, **asked)


@pytest.mark.parametrize(
    "shape",
    [
        case(),
        case(size=(71, 11)),
        case(size=(80, 11), strides=(2, 2)),
        case(c=24, m=24, groups=24, pads=((1, 0), (0, 1))),
        case(dilations=(2, 2), pads=((2, 2), (2, 2))),
    ],
)
@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_large_results_in_the_order_of_memory_have_the_same_bits(shape, machine):
    y = biased(convolution(**{**case(c=16, m=16, groups=16, size=(70, 12)), **shape}))
    c = candidate((y,), LAST, LAST, machine.vl)
    inputs, results = [noise(*t.value.shape) for t in c.needs], []
    for in_order in (True, False):
        l2_bytes = 4 * y.type.numel + 4 * (not in_order)
        kernel = check(conv.lower, y, LAST, machine=replace(machine, l2_bytes=l2_bytes))
        assert ("slide_rows" in kernel.source) == in_order
        flags = FLAGS[machine.vl]
        results.append(running.run_kernel(c, kernel, inputs, flags=flags)[0].tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_copies_of_crowded_pixels_give_the_same_bits(strides):
    y = biased(convolution(c=256, m=256, groups=256, size=(9, 17), strides=strides))
    c = candidate((y,), LAST, LAST)
    found = list(conv.variants(c, WIDE))
    assert found == [(), (("copies", True),)]
    inputs, results = [noise(*t.value.shape) for t in c.needs], []
    for params in found:
        kernel = check(conv.lower, y, LAST, **dict(params))
        results.append(running.run_kernel(c, kernel, inputs)[0].tobytes())
    assert results[0] == results[1]
    assert list(conv.variants(candidate((y,), FIRST, FIRST), WIDE)) == [()]


def test_a_single_weight_stands_in_the_code():
    y = p.conv(
        image(1, 1, 5, 6), p.constant(np.full((1, 1, 1, 1), 0.75, np.float32)), (2, 1), (1, 1)
    )
    kernel = check(conv.lower, y, FIRST)
    assert "0.75f" in kernel.source and all(q.role != "constant" for q in kernel.params)


class Paged(running.Guarded):
    """A buffer that ends where a page begins that cannot be read."""

    def __init__(self, size_bytes: int):
        self.size_bytes, page = size_bytes, mmap.PAGESIZE
        total = -(-size_bytes // page) * page
        self.memory = mmap.mmap(-1, total + page)
        self.raw, self.start = np.frombuffer(self.memory, np.uint8), total - size_bytes
        self.raw[: self.start] = running._MARK
        libc = ctypes.CDLL(None)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(self.raw.ctypes.data + total, page, 0) == 0

    def check(self, name: str) -> None:
        assert (self.raw[: self.start] == running._MARK).all(), f"{name}: written out of bounds"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system to protect a page")
@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize(
    "shape",
    ["odd channels", "1x1", "uneven pads", "depthwise", "depthwise, odd channels", "one axis"],
)
def test_reads_stay_inside(shape, where, monkeypatch):
    monkeypatch.setattr(running, "Guarded", Paged)
    check(conv.lower, biased(convolution(**SHAPES[shape])), where)


def test_onnx_runtime_agrees():
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    x, k, b = noise(2, 12, 21, 19), noise(36, 4, 3, 5), noise(36)
    attributes = case(group=3, strides=[2, 1], dilations=[1, 2], pads=[1, 4, 0, 3])
    node = onnx.helper.make_node("Conv", ["x", "k", "b"], ["y"], **attributes)

    def info(name, shape):
        return onnx.helper.make_tensor_value_info(name, 1, shape)

    graph = onnx.helper.make_graph(
        [node], "g", [info("x", x.shape), info("k", k.shape), info("b", b.shape)], [info("y", None)]
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "k": k, "b": b})
    source = image(*x.shape)
    y = p.conv(padded(source, ((1, 0), (4, 3))), p.constant(k), (2, 1), (1, 2), 3)
    y = y + p.constant(b.reshape(1, -1, 1, 1))
    for where in BOTH:
        c = candidate((y,), where, where)
        (got,) = running.run_kernel(c, conv.lower(c, WIDE), [x])
        np.testing.assert_allclose(got, want, atol=1e-5)


# ---------------------------------------------------------------- refusals


def volume() -> Value:
    return p.conv(image(1, 2, 4, 4, 4), weights(2, 2, 2, 2, 2), (1, 1, 1), (1, 1, 1))


def dynamic() -> Value:
    return p.conv(image(1, 2, 4, 4), image(2, 2, 3, 3), (1, 1), (1, 1))


def double() -> Value:
    k = p.constant(np.ones((2, 2, 3, 3)), F64)
    return p.conv(placeholder(of((1, 2, 4, 4), F64)), k, (1, 1), (1, 1))


def shifted() -> Value:
    y = convolution()
    return y + p.slice_(p.pad(y, [0, 0, 1, 0], [0] * 4), (0, 0, 0, 0), y.shape)


def averaged() -> Value:
    return p.reduce_mean(convolution(), (2, 3))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (volume, "3 spatial axes"),
        (dynamic, "computed at run time"),
        (double, "only f32"),
        (shifted, "another point"),
        (averaged, "not one value for each"),
        (lambda: p.conv(convolution(), weights(4, 16, 1, 1), (1, 1), (1, 1)), "2 of conv"),
    ],
)
def test_refusals_give_the_reason(make, reason):
    refusal = conv.lower(running.candidate_of((make(),)), WIDE)
    assert not refusal and reason in refusal.reason


# ---------------------------------------------------------------- what kernels are made of


def test_packed_panels():
    k = noise(10, 3, 2, 2)
    packed = PACKERS["conv_panels"](k, 2, 4, 2).reshape(2, 2, -1)
    for g in range(2):
        whole = packed[g, 0].reshape(4, 3, 4)  # four channels
        rest = packed[g, 1, : 4 * 3 * 2].reshape(4, 3, 2)  # the fifth and a zero
        taps = k[5 * g : 5 * g + 5].reshape(5, 3, 4)
        np.testing.assert_array_equal(whole, taps[:4].transpose(2, 1, 0))
        np.testing.assert_array_equal(rest[:, :, 0], taps[4].T)
        assert not rest[:, :, 1].any()


def test_packed_blocks():
    """Shares of 7 channels in blocks of up to 3: 3, 2, 2 as for_rows<3, 7> makes them."""
    k = noise(14, 3, 2, 2).reshape(14, 12)
    parts = PACKERS["conv_blocks"](k.reshape(14, 3, 2, 2), 7, 3).reshape(2, -1)
    for share, rows in zip(parts, k.reshape(2, 7, 12), strict=True):
        np.testing.assert_array_equal(share[:36].reshape(12, 3), rows[:3].T)
        np.testing.assert_array_equal(share[60:].reshape(12, 2), rows[5:].T)


def test_sums():
    assert plus("in", (64, "left"), (1, "m0"), (0, "g"), -3) == "in + 64 * left + m0 - 3"
    assert plus((-2, "h"), 5, (-1, "w")) == "-2 * h + 5 - w"
    assert plus(0) == plus() == "0"


def test_the_machine(tmp_path):
    assert _vectors(frozenset({"avx", "avx512f", "avx512dq"})) == (16, 32)
    assert _vectors(frozenset({"avx", "avx2", "fma"})) == (8, 16)
    assert _vectors(frozenset({"asimd"})) == (4, 32)
    rows = [
        ("Data", 1, "48K"),
        ("Instruction", 1, "32K"),
        ("Unified", 2, "2M"),
        ("Unified", 3, "?"),
    ]
    for i, (kind, level, size) in enumerate(rows):
        (tmp_path / f"index{i}").mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (tmp_path / f"index{i}" / name).write_text(f"{text}\n")
    assert _caches(tmp_path) == {1: 48 << 10, 2: 2 << 20}
    assert _caches(tmp_path / "nothing") == {}
    assert isinstance(this_machine(), Machine) and this_machine().l2_bytes >= 64 << 10
