"""Damaged, invalid and unsupported models: one sentence says what, where and what to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model_of, node
from onnx import ModelProto, TensorProto, helper

from fissile.errors import FissileError, ModelError
from fissile.onnx.load import load


def refused(says: str, source, **rest) -> None:
    with pytest.raises(ModelError) as refusal:
        load(source, **rest)
    text = str(refusal.value)
    assert says in text and "\n" not in text


def relu(**rest) -> ModelProto:
    return model_of([node("Relu", "x", "y", "act")], {"x": (2, 3)}, ["y"], **rest)


def test_files(tmp_path):
    refused("there is no file", tmp_path / "gone.onnx")
    refused("cannot be read", tmp_path)
    (tmp_path / "text.onnx").write_text("hello, this is no model")
    refused("no ONNX model", tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    refused("no ONNX model", tmp_path / "empty.onnx")
    refused("not int", 42)


def test_every_truncation_is_a_model_error():
    data = model_of([node("Add", "x w", "y")], {"x": (2,)}, ["y"], {"w": np.ones(2, "f4")})
    data = data.SerializeToString()
    for length in range(len(data)):
        try:
            load(data[:length])
        except ModelError as error:
            assert "\n" not in str(error)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_never_give_a_bare_traceback(data):
    source = bytearray(
        model_of(
            [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node("Softmax", "t", "y", axis=1)],
            {"x": (1, 2, 4, 4)},
            ["y"],
            {"w": np.ones((2, 2, 3, 3), np.float32)},
        ).SerializeToString()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    try:
        load(bytes(source))
    except FissileError as error:
        assert "\n" not in str(error)


def test_opsets_and_domains():
    refused("opset 6; 7 is the oldest", relu(opset=6))
    refused("upgrade onnx", relu(opset=999))
    unknown = model_of([helper.make_node("Frobnicate", ["x"], ["y"], "f")], {"x": (2,)}, ["y"])
    refused("node 'f' (Frobnicate of f32[2]): ONNX has no such operator in opset 17", unknown)
    other = model_of(
        [helper.make_node("Attn", ["x"], ["y"], "f", domain="my.ops")], {"x": (2,)}, ["y"]
    )
    refused("imports no opset for the domain 'my.ops'", other)
    other.opset_import.append(helper.make_opsetid("my.ops", 1))
    refused("(my.ops.Attn of f32[2])", other)


def test_dynamic_dimensions_name_the_remedy():
    dynamic = model_of([node("Relu", "x", "y")], {"x": ("batch", 3, None, 8)}, ["y"])
    refused("input 'x' has the dynamic dimension 0 ('batch'); fix it: --shape x=N,3,N,8", dynamic)
    refused("its dimension 1 is fixed to 3", dynamic, shapes={"x": (1, 4, 5, 8)})
    refused("has rank 4", dynamic, shapes={"x": (1, 3)})
    refused("not one of whole numbers", dynamic, shapes={"x": (1, 3, -1, 8)})
    refused("'z', which is no input; inputs: 'x'", dynamic, shapes={"z": (1,)})


def test_one_symbol_has_one_extent():
    nodes = [node("Relu", "a", "p"), node("Relu", "b", "q")]
    model = model_of(nodes, {"a": ("n", 2), "b": ("n", 3)}, ["p", "q"])
    graph = load(model, {"a": (5, 2)})
    assert [v.shape for v in graph.inputs] == [(5, 2), (5, 3)]
    refused("both 5 and 6", model, shapes={"a": (5, 2), "b": (6, 3)})


def test_graphs_that_do_not_hang_together():
    refused("reads 'q', which no node", model_of([node("Add", "x q", "y")], {"x": (2,)}, ["y"]))
    refused(
        "output 'z' is given by no node", model_of([node("Relu", "x", "y")], {"x": (2,)}, ["z"])
    )
    cycle = [node("Add", "x b", "a", "first"), node("Relu", "a", "b", "second")]
    refused("the graph has a cycle", model_of(cycle, {"x": (2,)}, ["b"]))
    twice = [node("Relu", "x", "y"), node("Neg", "x", "y", "again")]
    refused(
        "'y' is given twice, the second time by node 'again'", model_of(twice, {"x": (2,)}, ["y"])
    )
    refused("'x' is given twice", model_of([node("Relu", "x", "x")], {"x": (2,)}, ["x"]))
    refused("no outputs", model_of([node("Relu", "x", "y")], {"x": (2,)}, []))


def test_types():
    mixed = model_of([node("Add", "x w", "y", "plus")], {"x": (2,)}, ["y"], {"w": np.ones(2, "i8")})
    refused("node 'plus' (Add of f32[2], i64[2]): its input B has the element type i64", mixed)
    wrong = model_of([node("Not", "x", "y")], {"x": (2,)}, {"y": TensorProto.BOOL})
    refused("cannot have the element type f32", wrong)
    lie = model_of([node("Relu", "x", "y")], {"x": (2,)}, {"y": TensorProto.INT64})
    refused("output 'y' is declared as i64, but the graph computes f32", lie)
    text = model_of([node("Relu", "x", "y")], {"x": (2,)}, ["y"])
    text.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    refused("element type string", text)
    sequence = model_of([node("Relu", "x", "y")], {"x": (2,)}, ["y"])
    sequence.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    refused("of type sequence", sequence)


def test_shapes_and_attributes():
    matmul = model_of(
        [node("MatMul", "x w", "y", "mm")], {"x": (2, 3)}, ["y"], {"w": np.ones((4, 5), "f4")}
    )
    refused("node 'mm' (MatMul of f32[2,3], f32[4,5])", matmul)
    refused("f32[2,3] cannot be reshaped to [4]", model_of(
        [node("Reshape", "x s", "y")], {"x": (2, 3)}, ["y"], {"s": np.array([4])}))  # fmt: skip
    refused("attribute 'perms' is unknown", model_of(
        [node("Transpose", "x", "y", perms=[1, 0])], {"x": (2, 3)}, ["y"]))  # fmt: skip
    refused("attribute 'to' is missing", model_of([node("Cast", "x", "y")], {"x": (2, 3)}, ["y"]))
    refused("it has 1 inputs; 2 fit", model_of([node("Add", "x", "y")], {"x": (2, 3)}, ["y"]))
    refused("it has 2 outputs; 1 fit", model_of([node("Relu", "x", "y z")], {"x": (2, 3)}, ["y"]))
    refused("training", model_of(
        [node("BatchNormalization", "x s s s s", "y", training_mode=1)], {"x": (2, 3)}, ["y"],
        {"s": np.ones(3, "f4")}))  # fmt: skip


def test_sizes_that_cannot_be():
    huge = {"s": np.array([2**20, 2**20, 2**20], np.int64)}
    expand = model_of([node("Expand", "x s", "y")], {"x": (1,)}, ["y"], huge)
    refused("is too large", expand)
    negative = relu()
    negative.graph.initializer.add(name="w", dims=[-1], data_type=1)
    refused("impossible shape [-1]", negative)
    short = model_of([node("Add", "x w", "y")], {"x": (2,)}, ["y"], {"w": np.ones(2, "f4")})
    short.graph.initializer[0].raw_data = b"123"
    refused("tensor 'w' is damaged", short)


def test_shapes_known_at_run_time_only():
    model = model_of([node("Reshape", "x s", "y", "r")],
                     {"x": (2, 3), "s": np.zeros(1, np.int64)}, ["y"])  # fmt: skip
    refused(
        "node 'r' (Reshape of f32[2,3], i64[1]): its input shape is computed at run time", model
    )
    graph = load(model, values={"s": np.array([6])})
    assert graph.input_names == ("x",) and graph.outputs[0].shape == (6,)


def test_names_are_escaped_and_cut():
    model = model_of([node("Add", "x x", "y", "n\n\x1b[31m" + "é" * 200)], {"x": (2,)}, ["y"])
    model.graph.node[0].op_type = "Nonsense"
    with pytest.raises(ModelError) as refusal:
        load(model)
    assert r"\n\x1b" in str(refusal.value) and str(refusal.value).isascii()
    assert len(str(refusal.value)) < 250


def nested(levels: int) -> ModelProto:
    """Branches within branches, all under one run-time condition."""

    def leaf(name):
        out = [helper.make_tensor_value_info(name, 1, [2])]
        return helper.make_graph([helper.make_node("Neg", ["x"], [name])], name, [], out)

    graph = leaf("y0")
    for level in range(1, levels + 1):
        name = f"y{level}"
        layer = helper.make_node(
            "If", ["c"], [name], then_branch=graph, else_branch=leaf(f"e{level}")
        )
        graph = helper.make_graph([layer], name, [], [helper.make_tensor_value_info(name, 1, [2])])
    return model_of(graph.node, {"x": (2,), "c": np.zeros((), bool)}, [f"y{levels}"])


def test_nested_branches():
    graph = load(nested(20))
    assert graph.outputs[0].shape == (2,)
    assert [n.prim for n in graph.primitives] == ["neg"]  # all branches are equal


def test_functions_that_call_themselves_are_refused():
    body = [helper.make_node("Loop_", ["a"], ["b"], domain="mine")]
    function = helper.make_function(
        "mine", "Loop_", ["a"], ["b"], body, [helper.make_opsetid("mine", 1)]
    )
    model = model_of([helper.make_node("Loop_", ["x"], ["y"], domain="mine")], {"x": (2,)}, ["y"],
                     functions=[function])  # fmt: skip
    model.opset_import.append(helper.make_opsetid("mine", 1))
    refused("nested deeper", model)
