"""Kernels that the selection may pick, each run alone between guard pages: see `kernel_check`.

A random part of the kernels of two benchmark networks, and of small graphs with odd shapes, element
types and layouts.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from fissile.onnx.load import load
from fissile.targets.cpu.impls.lines import plus

ROOT = Path(__file__).resolve().parents[2]


def module(path: Path):
    """A file that is no part of a package."""
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        sys.modules[path.stem] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return sys.modules[path.stem]


kernel_check = module(ROOT / "tests" / "targets" / "cpu" / "kernel_check.py")


def faults(model: onnx.ModelProto, sample: int, seed: int) -> list[str]:
    """Of a sample of the model's kernels."""
    found: list[str] = []
    cases = kernel_check.sample_of(kernel_check.cases_of(load(model)), sample, seed)
    kernel_check.check_all(cases, seed, found.append)
    return found


@pytest.mark.parametrize("name", ["case_candy_in_relu_pad", "case_segformer_attn"])
def test_kernels_of_networks(name):
    networks = module(ROOT / "benchmarks" / "networks.py")
    assert faults(networks.network(name), sample=20, seed=7) == []


# Weights are drawn for inputs called w<shape>: w3x5 is f32[3,5]; see `model`.
GRAPHS = {
    "maps": """(float[2,3,11,13] x) => (float y, float z) {
        a = Conv<kernel_shape=[3,3], strides=[2,1], pads=[1,2,0,1]>(x, w5x3x3x3, w5)
        b = Relu(a)
        c = Conv<kernel_shape=[3,3], pads=[2,2,2,2], dilations=[2,2], group=5>(b, w5x1x3x3, w5)
        d = MaxPool<kernel_shape=[3,2], strides=[1,2], pads=[1,0,1,1]>(c)
        e = Conv<kernel_shape=[1,1]>(d, w7x5x1x1)
        f = Concat<axis=1>(d, e)
        g = AveragePool<kernel_shape=[2,3], pads=[0,1,1,1], count_include_pad=1>(f)
        y = Transpose<perm=[0,2,3,1]>(g)
        s = Softmax<axis=1>(e)
        z = GlobalAveragePool(s) }""",
    "tall": """(float[1,1,48,30] x) => (float y) {
        a = Conv<kernel_shape=[7,7], strides=[1,3], pads=[3,2,3,2]>(x, w33x1x7x7)
        b = Sigmoid(a)
        y = Conv<kernel_shape=[5,1], pads=[2,0,2,0], group=3>(b, w6x11x5x1, w6) }""",
    "line": """(float[3,4,37] x) => (float y, float z) {
        a = Conv<kernel_shape=[5], strides=[2], pads=[2,2]>(x, w6x4x5, w6)
        b = ConvTranspose<kernel_shape=[4], strides=[2], pads=[1,1]>(a, w6x3x4)
        c = LeakyRelu(b)
        y = MaxPool<kernel_shape=[3], strides=[3]>(c)
        z = InstanceNormalization(a, w6, w6) }""",
    "attention": """(float[2,7,12] x) => (float y) {
        q = MatMul(x, w12x9)
        k = MatMul(x, w12x9)
        kt = Transpose<perm=[0,2,1]>(k)
        s = MatMul(q, kt)
        p = Softmax<axis=-1>(s)
        v = MatMul(x, w12x5)
        o = MatMul(p, v)
        t = Transpose<perm=[1,0,2]>(o)
        n = LayerNormalization<axis=-1>(t, w5, w5)
        y = Gelu(n) }""",
    "one weight twice": """(float[17,17] x) => (float y) {
        a = MatMul(x, w17x17)
        y = Add(a, w17x17) }""",
    "borders": """(float[4,9] x) => (float y, float z) {
        s = Sigmoid(x)
        m = Mul(x, s)
        pads = Constant<value = int64[4] {1,3,2,2}>()
        p = Pad(m, pads)
        shape = Constant<value = int64[2] {14,7}>()
        r = Reshape(p, shape)
        y = Transpose<perm=[1,0]>(r)
        e = Exp(m)
        c = Concat<axis=1>(m, e, m)
        triples = Constant<value = int64[3] {2,18,3}>()
        t = Reshape(c, triples)
        z = ReduceMax<axes=[1], keepdims=0>(t) }""",
    "doubles": """(double[3,17] x, double[17,5] w) => (double y, double z) {
        a = MatMul(x, w)
        b = Softmax<axis=0>(a)
        c = Erf(b)
        y = ReduceMean<axes=[1]>(c)
        d = Tanh(x)
        z = Transpose<perm=[1,0]>(d) }""",
    "halves": """(float16[2,3,19] x, float16[19,8] w) => (float16 y, float16 z) {
        a = MatMul(x, w)
        b = Sigmoid(a)
        c = ReduceMean<axes=[2]>(b)
        y = Sub(b, c)
        z = Softmax<axis=-1>(x) }""",
    "integers": """(int64[5,7] x, int64[4] at, float[5,7] f) => (int64 y, int64 z, int64 u, float v,
    int32 w) {
        g = Gather<axis=1>(x, at)
        two = Constant<value = int64[1] {3}>()
        m = Mod(g, two)
        d = Div(g, two)
        y = Add(m, d)
        z = ReduceMax<axes=[0]>(x)
        u = ArgMax<axis=1, keepdims=0, select_last_index=1>(f)
        k = Constant<value = int64[1] {3}>()
        v, i = TopK<axis=0>(f, k)
        j = Cast<to=6>(i)
        w = Neg(j) }""",
    "bools": """(bool[3,1,5] a, bool[4,5] b, float[3,4,5] f) => (bool y, float z, bool u) {
        c = And(a, b)
        d = Xor(c, b)
        e = Not(d)
        y = Transpose<perm=[2,0,1]>(e)
        zero = Constant<value = float[1] {0.0}>()
        g = Greater(f, zero)
        h = Or(g, e)
        n = Neg(f)
        z = Where(h, f, n)
        u = IsNaN(z) }""",
    "bytes": """(float[3,21] x) => (float y) {
        scale = Constant<value = float {0.05}>()
        zero = Constant<value = uint8 {128}>()
        q = QuantizeLinear(x, scale, zero)
        d = DequantizeLinear(q, scale, zero)
        y = Clip(d) }""",
}


def model(text: str) -> onnx.ModelProto:
    """The graph with an initializer for every name w<extents> that no input has."""
    head = '<ir_version: 9, opset_import: ["" : 17]> g '
    if "Gelu" in text:
        head = head.replace("17", "20")
    made = parser.parse_model(head + text)
    names = {v.name for v in made.graph.input}
    for node in made.graph.node:
        for name in node.input:
            if name in names or not (name[0] == "w" and name[1:2].isdigit()):
                continue
            names.add(name)
            shape = [int(n) for n in name[1:].split("x")]
            rng = np.random.default_rng(len(names))
            data = rng.standard_normal(shape).astype(np.float32)
            made.graph.initializer.append(numpy_helper.from_array(data, name))
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_of_small_graphs(name):
    assert faults(model(GRAPHS[name]), sample=30, seed=3) == []


def test_a_factor_multiplies_all_of_its_name():
    assert plus("a", (43, "t % 4"), (1, "n")) == "a + 43 * (t % 4) + n"
