"""Attention kernels against numpy in float64, and against ONNX Runtime: shapes, layouts, masks,
blocks of keys, infinities, refusals."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from fissile.ir import prims as p
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.types import F64, of
from fissile.kernels.candidate import Kernel
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.targets.cpu.impls import attention
from fissile.targets.cpu.machine import Machine, this_machine
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

HERE = this_machine()
SPEC = "abmk,abkn->abmn"


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(*shape: int) -> Value:
    return placeholder(of(shape))


def softmax(x: Value, axes: int | tuple[int, ...]) -> Value:
    e = p.exp(x - p.reduce_max(x, axes))
    return e / p.reduce_sum(e, axes)


def attend(q: Value, k: Value, v: Value, scale: float = 0.25) -> Value:
    """q: [a, b, m, d], k: [a, b, d, n], v: [a, b, n, e]"""
    return p.contract(softmax(p.contract(q, k, SPEC) * scale, 3), v, SPEC)


def split(x: Value, heads: int, perm: Sequence[int] = (0, 2, 1, 3)) -> Value:
    """[a, m, heads * d] -> [a, heads, m, d], or another order of these axes"""
    a, m, c = x.shape
    return p.transpose(p.reshape(x, (a, m, heads, c // heads)), perm)


def merged(y: Value) -> Value:
    """[a, heads, m, d] -> [a, m, heads * d]"""
    a, heads, m, d = y.shape
    return p.reshape(p.transpose(y, (0, 2, 1, 3)), (a, m, heads * d))


def check(
    y: Value,
    inputs: Mapping[Value, np.ndarray] | None = None,
    machine: Machine = HERE,
    flags: Sequence[str] = (),
    **params: int,
) -> Kernel:
    """The kernel, once its values are those of numpy in float64: the error of a softmax is that
    of its logits, which are of scale one here."""
    candidate = candidate_of((y,), **params)
    kernel = attention.lower(candidate, machine)
    assert kernel, kernel
    known = inputs or {}
    data = [known.get(v, noise(*v.shape, seed=k)) for k, v in enumerate(candidate.region.tensors)]
    (got,), (want,) = (run_kernel(candidate, kernel, data, flags=flags), expected(candidate, data))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    np.testing.assert_allclose(got, want, 0, 4e-6 * scale, equal_nan=True)
    return kernel


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.integers(1, 70),
    keys=st.integers(1, 600),
    size=st.integers(1, 130),
    columns=st.integers(1, 130),
    block=st.sampled_from([0, 32, 128]),
)
def test_any_extents(
    batch: int, heads: int, queries: int, keys: int, size: int, columns: int, block: int
) -> None:
    q, k = tensor(batch, heads, queries, size), tensor(batch, heads, size, keys)
    v = tensor(batch, heads, keys, columns)
    check(attend(q, k, v, size**-0.5), **({"keys": block} if block else {}))


def test_heads_are_split_and_merged_in_the_kernel() -> None:
    q, k, v = tensor(2, 40, 3 * 24), tensor(2, 51, 3 * 24), tensor(2, 51, 3 * 17)
    y = attend(split(q, 3), split(k, 3, (0, 2, 3, 1)), split(v, 3))
    for block in ({}, {"keys": 32}):
        check(merged(y), **block)
    check(y)


def test_prologues_are_packed() -> None:
    qkv = tensor(1, 33, 3 * 4 * 16)
    q, k, v = (p.slice_(qkv, (0, 0, 64 * i), (1, 33, 64)) for i in range(3))
    check(merged(attend(split(q * 0.3, 4), split(p.maximum(k, 0.0), 4, (0, 2, 3, 1)), split(v, 4))))
    x = tensor(1, 2, 100, 20)
    check(attend(p.exp(x), p.transpose(x, (0, 1, 3, 2)), x))
    turned = p.transpose(tensor(1, 2, 20, 100), (0, 1, 3, 2))
    check(attend(turned, p.transpose(x, (0, 1, 3, 2)), x))
    check(attend(x, p.constant(noise(1, 2, 20, 60)), p.constant(noise(1, 2, 60, 9, seed=3))))


@pytest.mark.parametrize("block", [{}, {"keys": 32}])
@pytest.mark.parametrize("shape", [(1, 1, 1, 77), (2, 1, 19, 77), (2, 3, 19, 77), (19, 1), (77,)])
def test_masks(shape: tuple[int, ...], block: dict[str, int]) -> None:
    q, k, v, mask = tensor(2, 3, 19, 8), tensor(2, 3, 8, 77), tensor(2, 3, 77, 16), tensor(*shape)
    scores = p.contract(q, k, SPEC)
    for logits in (scores * 0.3 + mask, (scores + mask) / 2.8, mask - scores, scores + mask):
        check(p.contract(softmax(logits, 3), v, SPEC), **block)


def causal(m: int, n: int) -> np.ndarray:
    return np.where(np.tri(m, n, n - m, dtype=bool), 0.0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("block", [{}, {"keys": 32}])
def test_minus_infinity(block: dict[str, int]) -> None:
    """A masked key counts for nothing, a row of masked keys is NaN, as by the primitives."""
    q, k, v, mask = (
        tensor(1, 2, 50, 8),
        tensor(1, 2, 8, 100),
        tensor(1, 2, 100, 16),
        tensor(50, 100),
    )
    y = p.contract(softmax(p.contract(q, k, SPEC) + mask, 3), v, SPEC)
    data = causal(50, 100)
    check(y, {mask: data}, **block)
    data[7] = -np.inf
    data[9, :64], data[11, 40:] = -np.inf, -np.inf
    check(y, {mask: data}, **block)
    data[13, 70], data[15, 3] = np.nan, np.inf
    check(y, {mask: data}, **block)
    fixed = p.constant(causal(50, 100))
    check(p.contract(softmax(p.contract(q, k, SPEC) + fixed, 3), v, SPEC), **block)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = tensor(1, 1, 20, 8), tensor(1, 1, 8, 90), tensor(1, 1, 90, 8)
    rows = np.round(noise(1, 1, 20, 8) * 4) * 64  # exact products
    columns = np.round(noise(1, 1, 8, 90, seed=3) * 4)
    for block in ({}, {"keys": 32}):
        check(attend(q, k, v, 1.0), {q: rows, k: columns}, **block)


def test_one_set_of_keys_for_all_heads_and_other_axes() -> None:
    q, k, v = tensor(2, 3, 20, 8), tensor(2, 8, 40), tensor(2, 40, 16)
    shares = softmax(p.contract(q, k, "abmk,akn->abmn") * 0.3, 3)
    check(p.contract(shares, v, "abmk,akn->abmn"))
    q, k, v = tensor(20, 3, 8), tensor(40, 3, 8), tensor(40, 3, 16)
    check(p.contract(softmax(p.contract(q, k, "mhd,nhd->hmn"), 2), v, "hmn,nhe->mhe"))
    check(p.contract(softmax(p.contract(k, q, "nhd,mhd->hnm"), 1), v, "hnm,nhe->mhe"))
    q, k, v = tensor(5, 4, 8), tensor(6, 7, 8), tensor(6, 7, 16)
    check(p.contract(softmax(p.contract(q, k, "abd,xyd->abxy"), (2, 3)), v, "abxy,xye->abe"))


def test_layouts_between_the_contractions() -> None:
    q, k, v = tensor(6, 20, 8), tensor(6, 8, 40), tensor(6, 40, 16)
    scores = p.reshape(p.contract(q, k, "omd,odn->omn"), (2, 3, 20, 40))
    shares = softmax(scores + tensor(2, 1, 1, 40), 3)
    check(p.contract(p.reshape(shares, (6, 20, 40)), v, "omn,one->ome"))
    check(p.maximum(p.contract(shares, p.reshape(v, (2, 3, 40, 16)), SPEC) + tensor(16), 0.0))


@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        (replace(HERE, vl=HERE.vl // 2), ("-DFISSILE_NARROW",)),
        (replace(HERE, vl=8, registers=16), ("-mno-avx512f", "-mavx2", "-mfma")),
        (replace(HERE, vl=4, registers=16), ("-mno-avx512f", "-mno-avx")),
        (replace(HERE, threads=7), ()),
    ],
)
def test_other_machines(machine: Machine, flags: tuple[str, ...]) -> None:
    if "-DFISSILE_NARROW" in flags and HERE.vl != 16:
        pytest.skip("only long vectors become narrow")
    q, k, v = tensor(1, 33, 2 * 24), tensor(1, 75, 2 * 24), tensor(1, 75, 2 * 24)
    y = merged(attend(split(q, 2), split(k, 2, (0, 2, 3, 1)), split(v, 2)))
    for block in ({}, {"keys": 32}):
        check(y, machine=machine, flags=flags, **block)


def test_bits_do_not_depend_on_tiles() -> None:
    q, k, v = tensor(1, 2, 150, 8), tensor(1, 2, 8, 75), tensor(1, 2, 75, 16)
    y = attend(q, k, v)
    data = [noise(*x.shape, seed=i) for i, x in enumerate((q, k, v))]
    found: set[bytes] = set()
    counts: set[int] = set()
    for threads, registers in ((1, HERE.registers), (3, HERE.registers), (8, HERE.registers // 2)):
        candidate = candidate_of((y,))
        kernel = attention.lower(candidate, replace(HERE, threads=threads, registers=registers))
        assert kernel
        counts.add(kernel.tiles)
        found.add(run_kernel(candidate, kernel, data)[0].tobytes())
    assert len(counts) > 1
    assert len(found) == 1


def test_growth_adds_few_regions(tmp_path: Path) -> None:
    """Beside complete attentions: what leads there from the second contraction, one set each."""
    graph = load(exported(45, 67, 3, 20, tmp_path / "attention.onnx"))
    found = []
    for without in ((), ("attention",)):
        cpu = Cpu(graph, HERE, without=without)
        found.append({r.nodes for r in identify(graph, cpu.limits, cpu.admissible)})
    added = found[0] - found[1]
    assert found[1] < found[0]
    assert len(added) <= 24
    last = [n for n in graph.primitives if n.prim == "contract"][-1]
    assert all(last in nodes for nodes in added)


def refusal(*outputs: Value) -> str:
    result = attention.lower(candidate_of(outputs), HERE)
    assert not result
    return result.reason  # pyright: ignore


def test_refusals_have_reasons() -> None:
    q, k, v = tensor(1, 2, 20, 8), tensor(1, 2, 8, 40), tensor(1, 2, 40, 16)
    scores = p.contract(q, k, SPEC)
    assert "not two" in refusal(softmax(scores, 3))
    assert "divided by a sum" in refusal(p.contract(scores, v, SPEC))
    e = p.exp(scores)
    assert "difference" in refusal(p.contract(e / p.reduce_sum(e, 3), v, SPEC))
    low = p.exp(scores - p.reduce_min(scores, 3))
    assert "maximum" in refusal(p.contract(low / p.reduce_sum(low, 3), v, SPEC))
    assert "over the keys" in refusal(p.contract(softmax(scores, 2), v, SPEC))
    shares = softmax(scores, 3)
    assert "element by element" in refusal(p.contract(shares, v, SPEC), shares)
    turned = p.transpose(p.contract(softmax(scores, 3), v, SPEC), (0, 1, 3, 2))
    assert "on vectors" in refusal(turned)
    double = [placeholder(of(x.shape, F64)) for x in (q, k, v)]
    assert "f32" in refusal(attend(*double))
    nothing = attend(q, tensor(1, 2, 8, 0), tensor(1, 2, 0, 16))
    assert "nothing" in refusal(nothing)
    alone = p.contract(q, tensor(1, 2, 8, 40, 3), "abmk,abknz->abmn")
    assert "alone" in refusal(p.contract(softmax(alone, 3), v, SPEC))


def exported(queries: int, keys: int, heads: int, size: int, path: Path) -> str:
    """Attention as exporters write it: heads split, scaled, masked and merged."""
    c = heads * size
    shapes = {"q": (1, queries, c), "k": (1, keys, c), "v": (1, keys, c), "mask": (1, 1, 1, keys)}
    nodes = []
    for x, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("Reshape", [x, "split"], [f"{x}s"]))
        nodes.append(helper.make_node("Transpose", [f"{x}s"], [f"{x}h"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "vh"], ["o"]),
        helper.make_node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["ot", "merge"], ["y"]),
    ]
    constants = [
        helper.make_tensor("split", TensorProto.INT64, [4], [1, -1, heads, size]),
        helper.make_tensor("merge", TensorProto.INT64, [3], [1, -1, c]),
        helper.make_tensor("root", TensorProto.FLOAT, [], [size**0.5]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, queries, c))
    graph = helper.make_graph(nodes, "attention", inputs, [y], constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def test_an_exported_attention_is_one_kernel_of_the_target(tmp_path: Path) -> None:
    model = exported(45, 67, 3, 20, tmp_path / "attention.onnx")
    graph = load(model)
    cpu = Cpu(graph, HERE)
    regions = identify(graph, cpu.limits, cpu.admissible)
    candidates = [c for r in regions for c in cpu.implementations(r) if c.impl == "attention"]
    assert candidates
    c = max(candidates, key=lambda c: len(c.region.nodes))
    assert c.region.outputs == graph.outputs
    kernel = cpu.kernel(c)
    assert isinstance(kernel, Kernel)
    names = ("q", "k", "v", "mask")
    feeds = {
        n: noise(*x.shape, seed=i) for i, (n, x) in enumerate(zip(names, graph.inputs, strict=True))
    }
    (want,) = onnxruntime.InferenceSession(model).run(None, feeds)
    above = Graph(graph.inputs, c.region.tensors, names, tuple(map(str, range(len(c.needs)))))
    (got,) = run_kernel(c, kernel, evaluate(above, list(feeds.values()), False))
    np.testing.assert_allclose(got, want, 0, 4e-6 * np.abs(want).max())
