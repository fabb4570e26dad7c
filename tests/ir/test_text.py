"""Text of graphs: what is printed parses to the very same values, whatever the names, types and
bits."""

from __future__ import annotations

import contextlib
import math
import random
import struct
import time

import ml_dtypes
import numpy as np
import pytest
from handmade import graph_of, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fissile.errors import ModelError
from fissile.ir.graph import Graph, Literal, intern, placeholder
from fissile.ir.prims import add, cast, concat, constant, conv, make, neg, pad, reduce_sum
from fissile.ir.text import constants, parse, text
from fissile.ir.types import F32, I64, of
from fissile.ir.verify import verify


def round_trip(graph):
    printed = text(graph)
    again = parse(printed, constants(graph))
    assert again.inputs == graph.inputs and again.outputs == graph.outputs
    assert all(a is b for a, b in zip(again.nodes, graph.nodes, strict=True))
    assert (again.input_names, again.output_names) == (graph.input_names, graph.output_names)
    assert again.name == graph.name and dict(again.provenance) == dict(graph.provenance)
    assert text(again) == printed
    return printed


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed):
    graph = random_graph(seed, size=30)
    round_trip(graph)
    verify(graph)


def test_looks_like_this():
    x = placeholder(of((2, 3)), id=987654)
    y = reduce_sum(pad(x, (0, 1), (0, 0), value=-0.0) * 0.5, 1)
    graph = graph_of([x], [y], provenance={y.node: ("Sum_1", "a\nb")})
    assert text(graph) == (
        'graph "main" (%0 "x0") -> (%4 "y0") {\n'
        '  %0 = input() {id: 987654, of: "f32[2,3]"} : f32[2,3]\n'
        '  %1 = pad(%0) {hi: (0, 0), lo: (0, 1), mode: "constant", value: -0.0} : f32[2,4]\n'
        "  %2 = constant() {value: f32[] [0.5]} : f32[]\n"
        "  %3 = mul(%1, %2) : f32[2,4]\n"
        '  %4 = reduce_sum(%3) {axes: (1)} : f32[2,1] from "Sum_1", "a\\nb"\n'
        "}\n"
    )
    round_trip(graph)


names = st.text(
    st.characters(codec=None, exclude_categories=[]), max_size=30
)  # surrogates included


@given(names, names, st.lists(names, max_size=3))
def test_any_name(x_name, y_name, origin):
    x = placeholder(of((2,)), id=0)
    y = neg(x)
    graph = Graph(
        (x,), (y,), (x_name,), (y_name,), {y.node: tuple(origin)} if origin else {}, x_name
    )
    assert text(graph).isascii()
    round_trip(graph)


HOSTILE = [
    '*/ system("x"); /*',
    "} graph %1 = neg(%0)",
    '"',
    "\\",
    "\n\r\0",
    "ünïcödé ☢",
    "x" * 10_000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name):
    x = placeholder(of((2,)))
    y = neg(x)
    round_trip(Graph((x,), (y,), (name,), (name,), {y.node: (name,)}, name))


attrs = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | names
    | st.binary(min_size=8, max_size=8).map(lambda b: struct.unpack("<d", b)[0]),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), attrs, max_size=4))
@settings(max_examples=300)
def test_any_attribute(values):
    x = placeholder(of((2,)), id=1)
    y = intern("odd", [x], values, [of((2,))] * 3)
    round_trip(graph_of([x], [y.outputs[2], y.outputs[0]]))


ELEMENTS = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.int64, np.uint64,
            np.bool_, np.complex64]  # fmt: skip


@given(st.data(), st.sampled_from(ELEMENTS), hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
@settings(max_examples=200)
def test_any_literal_by_its_bits(data, dtype, shape):
    count = math.prod(shape) * np.dtype(dtype).itemsize
    raw = data.draw(st.binary(min_size=count, max_size=count))
    raw = bytes(b & 1 for b in raw) if dtype is np.bool_ else raw
    c = constant(np.frombuffer(raw, dtype).reshape(shape))
    round_trip(graph_of([], [c]))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
@pytest.mark.parametrize("count", [0, 3, 100])
def test_other_element_types(dtype, count):
    round_trip(graph_of([], [constant(np.arange(count).astype(dtype))]))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 0.1, 3.4028235e38, 1e16]
)
def test_floats_are_exact(value):
    c = constant(np.array([value], np.float32))
    assert round_trip(graph_of([], [c, add(c, value)])).isascii()


def test_large_constants_are_in_the_table():
    w = constant(np.arange(17, dtype=np.float32))
    graph = graph_of([], [neg(w)])
    table = constants(graph)
    (digest,) = table
    assert f"f32[17] @{digest}" in text(graph)
    with pytest.raises(ModelError, match=f"no constant {digest}"):
        parse(text(graph))
    with pytest.raises(ModelError, match="expected f32"):
        parse(text(graph), {digest: np.zeros(17, np.float32)})


def test_inner_graphs():
    """A body is a closed graph in an attribute; it has no identity to keep, so its text is
    compared."""
    a = placeholder(of((2,)))
    big = constant(np.arange(40, dtype=np.float32))
    inner = Graph((a,), (neg(a), big), ("state",), ("next", "w"), {}, "body {")
    x = placeholder(of((2,)))
    y = intern("loop", [x], {"body": inner, "count": 3}, [of((2,))]).value
    graph = graph_of([x], [y])
    again = parse(text(graph), constants(graph))
    assert text(again) == text(graph)
    assert again.outputs[0].node.attrs["body"].outputs[0] is inner.outputs[0]


def test_unused_input_and_fresh_inputs():
    x, unused = placeholder(of((2,))), placeholder(of((3,), I64))
    graph = graph_of([x, unused], [neg(x)])
    round_trip(graph)
    fresh = parse(text(graph), fresh=True)
    assert fresh.inputs[0] is not x and fresh.inputs[1].type == unused.type


def test_ten_thousand_deep():
    x = placeholder(of((2,)))
    y = x
    for i in range(10_000):
        y = add(y, i % 7 + 0.5)
    graph = graph_of([x], [y])
    start = time.perf_counter()
    round_trip(graph)
    verify(graph)
    assert time.perf_counter() - start < 20


def test_faults_name_their_line():
    good = text(random_graph(1))
    for broken, message in [
        ("", "expected 'graph'"),
        (good + "x", "after the graph"),
        (good.replace("= input", "= !"), "line 2: unexpected"),
        (good.replace("f32[3,5]\n", "f99[3,5]\n", 1), "line 2: KeyError 'f99'"),
        ('graph "g" () -> (%1 "y") {\n}', "%1 is not defined"),
        ('graph "g" () -> () {\n%1 = neg(%7) : f32[2]\n}', "line 2.*%7 is used before"),
        ('graph "g" () -> () {\n%1 = neg() {a: f32[2] [1]} : f32[2]\n}', "ValueError"),
    ]:
        with pytest.raises(ModelError, match=message):
            parse(broken)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_text_is_refused_or_parsed(seed):
    rng = random.Random(seed)
    good = text(random_graph(3))
    at = rng.randrange(len(good))
    broken = (
        good[:at]
        + rng.choice(['"', "%", "(", "}", "9", "@", " ", ""])
        + good[at + rng.randrange(4) :]
    )
    with contextlib.suppress(ModelError):
        parse(broken, constants(random_graph(3)))


# ---------------------------------------------------------------- verifier


def test_verifier_finds_wrong_types():
    x = placeholder(of((2, 3)))
    wrong = intern("add", [x, x], {}, [of((9,))]).value
    with pytest.raises(
        ModelError, match=r"add\(f32\[2,3\], f32\[2,3\]\) from 'Add_\\n7': claims f32\[9\]"
    ):
        verify(graph_of([x], [wrong], provenance={wrong.node: ("Add_\n7",)}))
    mixed = intern("concat", [x, placeholder(of((2, 4), I64))], {"axis": 0}, [of((4, 3))]).value
    with pytest.raises(ModelError, match="cannot concat"):
        verify(graph_of([x, mixed.node.inputs[1]], [mixed]))
    with pytest.raises(ModelError, match="no such primitive"):
        verify(graph_of([x], [intern("frobnicate", [x], {}, [of(())]).value]))
    with pytest.raises(ModelError, match="disagree"):
        verify(
            graph_of(
                [c := intern("input", (), {"id": 1, "of": "f32[1]"}, [of((2,))]).value], [neg(c)]
            )
        )
    missing = intern("pad", [x], {"lo": (0, 0)}, [of((2, 3))]).value
    with pytest.raises(ModelError, match="pad"):
        verify(graph_of([x], [missing]))


def test_verifier_checks_the_ends():
    x, y = placeholder(of((2,))), placeholder(of((2,)))
    for graph, message in [
        (Graph((x,), (neg(x),), ("a", "b"), ("c",)), "1 inputs, 2 names"),
        (Graph((x, y), (neg(x),), ("a", "a"), ("c",)), "two inputs are called 'a'"),
        (Graph((x, x), (neg(x),), ("a", "b"), ("c",)), "listed twice"),
        (Graph((x,), (add(x, y),), ("a",), ("c",)), "does not list"),
        (Graph((neg(x),), (neg(x),), ("a",), ("c",)), "listed as an input"),
    ]:
        with pytest.raises(ModelError, match=message):
            verify(graph)


def test_verifier_enters_inner_graphs():
    a, x = placeholder(of((2,))), placeholder(of((2,)))
    inner = Graph((), (a,), (), ("y",))
    node = intern("concat", [x], {"axis": 0, "body": inner}, [of((2,))])
    with pytest.raises(ModelError, match="does not list"):
        verify(graph_of([x], [node.value]))


def test_a_literal_is_what_it_was():
    literal = Literal(np.array([1.0, math.nan], np.float32))
    assert literal.type == of((2,), F32)
    x, w = placeholder(of((1, 2, 5, 5))), constant(np.ones((3, 2, 3, 3), np.float32))
    y = conv(x, w, (1, 1), (1, 1))
    round_trip(graph_of([x], [concat([y, y], 1), make("argmax", [y], axes=(1,), last=True)[0]]))


def test_nodes_of_several_outputs_have_names_of_their_own() -> None:
    x = placeholder(of([2, 5]))
    values, indices = make("topk", [x], axis=1, k=3, largest=True)
    z = add(neg(values), cast(indices, F32))
    printed = round_trip(Graph((x,), (z,), ("x",), ("z",)))
    names = [line.split("=")[0].strip() for line in printed.splitlines() if " = " in line]
    every = [n.strip() for name in names for n in name.split(",")]
    assert len(set(every)) == len(every) == 6  # x, two of topk, neg, cast, add
