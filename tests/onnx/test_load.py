"""What load makes of a model: constants, defaults, branches, functions, provenance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models import assert_near, model_of, node, runtime, values
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fissile.errors import ModelError
from fissile.ir.graph import walk
from fissile.onnx.load import load


def prims(graph) -> list[str]:
    return [n.prim for n in graph.primitives]


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_every_kind_of_source(tmp_path):
    model = model_of([node("Relu", "x", "y")], {"x": (2, 3)}, ["y"])
    path = tmp_path / "a model.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (path, str(path), Path(path), model, model.SerializeToString()):
        graph = load(source)
        assert (graph.input_names, graph.output_names) == (("x",), ("y",))
        assert prims(graph) == ["max"] and graph.name == "test"


def test_shape_arithmetic_folds_away():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Mul", "n two", "m"),
        node("Unsqueeze", "m front", "u"),
        node("Concat", "u rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {
        "zero": np.array(0),
        "two": np.array(2),
        "front": np.array([0]),
        "rest": np.array([-1]),
    }
    model = model_of(nodes, {"x": (3, 4)}, ["y"], constants)
    graph = load(model)
    assert prims(graph) == ["reshape"] and graph.outputs[0].shape == (6, 2)


def test_constants_fold_in_double_precision_and_giants_do_not():
    nodes = [node("Exp", "c", "e"), node("Expand", "e s", "b"), node("Add", "b x", "y")]
    constants = {"c": np.float32(0.1).reshape(1), "s": np.array([1500, 1500])}
    graph = load(model_of(nodes, {"x": (1500, 1500)}, ["y"], constants))
    assert prims(graph) == ["broadcast", "add"]
    small = graph.primitives[0].inputs[0]
    assert small.array[0] == np.float32(np.exp(np.float64(np.float32(0.1))))


def test_batch_norm_is_one_product_and_one_sum():
    constants = {n: np.abs(normal(3)) + 0.1 for n in "sbmv"}
    model = model_of(
        [node("BatchNormalization", "x s b m v", "y")], {"x": (1, 3, 4, 4)}, ["y"], constants
    )
    graph = load(model)
    assert prims(graph) == ["mul", "add"]
    s, b, m, v = (constants[n].astype(np.float64) for n in "sbmv")
    scale = s / np.sqrt(v + np.float64(np.float32(1e-5)))
    mul, add = graph.primitives
    np.testing.assert_array_equal(mul.inputs[1].array.ravel(), scale.astype(np.float32))
    np.testing.assert_array_equal(add.inputs[1].array.ravel(), (b - m * scale).astype(np.float32))


@pytest.mark.parametrize(
    ("nodes", "shape", "constants", "expected"),
    [
        ([node("Softmax", "x", "y")], (2, 3), {},
         ["reduce_max", "sub", "exp", "reduce_sum", "div"]),
        ([node("LayerNormalization", "x w b", "y")], (2, 3), {"w": 3, "b": 3},
         ["reduce_mean", "sub", "mul", "reduce_mean", "add", "rsqrt", "mul", "mul", "add"]),
        ([node("Gemm", "x w b", "y", transB=1)], (2, 3), {"w": (4, 3), "b": 4},
         ["contract", "add"]),
        ([node("Conv", "x w", "y", pads=[1] * 4)], (1, 2, 5, 5), {"w": (2, 2, 3, 3)},
         ["pad", "conv"]),
        ([node("ConvTranspose", "x w", "y", strides=[2, 2])], (1, 2, 4, 4), {"w": (2, 3, 2, 2)},
         ["contract", "transpose", "reshape"]),
        ([node("HardSwish", "x", "y")], (2,), {}, ["mul", "add", "clip", "mul"]),
        ([node("LeakyRelu", "x", "y")], (2,), {}, ["mul", "max"]),
        ([node("Dropout", "x", "t"), node("Identity", "t", "u"), node("Neg", "u", "y")], (2,), {},
         ["neg"]),
    ],
)  # fmt: skip
def test_few_primitives(nodes, shape, constants, expected):
    arrays = {n: normal(*s) if isinstance(s, tuple) else normal(s) for n, s in constants.items()}
    assert prims(load(model_of(nodes, {"x": shape}, ["y"], arrays))) == expected


def test_contraction_specs():
    def spec(a, b):
        graph = load(model_of([node("MatMul", "a b", "y")], {"a": a, "b": b}, ["y"]))
        return next(n.attrs["spec"] for n in graph.primitives if n.prim == "contract")

    assert spec((2, 5, 3), (3, 4)) == "abk,kn->abn"
    assert spec((2, 5, 3), (2, 3, 4)) == "amk,akn->amn"
    assert spec((5, 3), (3, 4)) == "ak,kn->an" and spec((3,), (3, 4)) == "k,kn->n"
    assert spec((1, 5, 3), (2, 3, 4)) == "mk,akn->amn"
    assert spec((6, 1, 5, 3), (1, 2, 3, 4)) == "amk,bkn->abmn"


def test_initialisers_that_are_inputs_are_defaults():
    model = model_of([node("Add", "x w", "y")], {"x": (2,), "w": (2,)}, ["y"], {"w": normal(2)})
    assert load(model).input_names == ("x",)
    assert load(model, {"w": (2,)}).input_names == ("x", "w")
    assert load(model, values={"w": np.zeros(2)}).input_names == ("x",)


def test_provenance_names_every_node_that_needs_a_primitive():
    nodes = [
        node("Relu", "x", "a", "first"),
        node("Relu", "x", "b", "second"),
        node("Softmax", "a", "s", "soft"),
        node("Add", "s b", "y"),
    ]
    graph = load(model_of(nodes, {"x": (2, 3)}, ["y"]))
    names = {n.prim: graph.provenance[n] for n in graph.primitives}
    assert names["max"] == ("first", "second")
    assert names["exp"] == ("soft",) and names["add"] == ("y",)
    assert set(graph.provenance) == set(graph.primitives)


def branch(op: str, *inputs: str, name: str, constants=()) -> helper.GraphProto:
    out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, inputs, [name])], op, [], [out], constants)


def conditional(then, other, **inputs) -> ModelProto:
    layer = helper.make_node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)
    return model_of([layer], {"x": (2, 3), **inputs}, ["y"])


def test_if_with_a_known_condition_takes_one_branch():
    weight = numpy_helper.from_array(normal(4, 5), "w")  # does not fit x: never looked at
    model = conditional(
        branch("Relu", "x", name="t"), branch("MatMul", "x", "w", name="e", constants=[weight])
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    assert prims(load(model)) == ["max"]


def test_if_at_run_time_selects():
    model = conditional(branch("Relu", "x", name="r"), branch("Neg", "x", name="r"),
                        c=np.zeros((), bool))  # fmt: skip
    graph = load(model)
    for condition in (True, False):
        feeds = {"x": normal(2, 3), "c": np.array(condition)}
        assert_near(values(graph, feeds)[0], runtime(model, feeds)[0])
    fixed = load(model, values={"c": np.array(False)})
    assert prims(fixed) == ["neg"]


def test_if_whose_branches_differ_is_refused():
    model = conditional(branch("Transpose", "x", name="r"), branch("Neg", "x", name="r"),
                        c=np.zeros((), bool))  # fmt: skip
    with pytest.raises(ModelError, match=r"'choice'.*f32\[3,2\], the other f32\[2,3\]"):
        load(model)


def counted(trips, condition, *, grow: bool) -> ModelProto:
    """y doubles every trip while it stays below a limit."""
    nodes = [
        node("Add", "v v", "w"),
        node("ReduceSum", "w", "s", keepdims=0),
        node("Less", "s top", "again"),
    ]
    if not grow:
        nodes = [node("Add", "v v", "w"), node("Identity", "c_in", "again")]
    infos = [("i", 7, []), ("c_in", 9, []), ("v", 1, [2])]
    ins = [helper.make_tensor_value_info(*info) for info in infos]
    outs = [("again", 9, []), ("w", 1, [2])] + ([] if grow else [("w_row", 1, [2])])
    if not grow:
        nodes.append(node("Neg", "w", "w_row"))
    body = helper.make_graph(nodes, "body", ins, [helper.make_tensor_value_info(*o) for o in outs],
                             [numpy_helper.from_array(np.float32(50), "top")])  # fmt: skip
    results = ["y"] if grow else ["y", "rows"]
    loop = helper.make_node(
        "Loop", ["trips" if trips is not None else "", condition, "x"], results, body=body
    )
    constants = {} if trips is None else {"trips": np.array(trips)}
    inputs = {"x": (2,)} | ({"c": np.zeros((), bool)} if condition else {})
    return model_of([loop], inputs, results, constants)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_loop_with_known_trips(trips):
    model, feeds = counted(trips, "", grow=False), {"x": normal(2)}
    for got, want in zip(values(load(model), feeds), runtime(model, feeds), strict=True):
        assert_near(got, want)


def test_loop_that_may_stop_early():
    model = counted(6, "c", grow=True)
    graph = load(model)
    for condition in (True, False):
        feeds = {"x": np.array([1, 2], np.float32), "c": np.array(condition)}
        assert_near(values(graph, feeds)[0], runtime(model, feeds)[0])
    with pytest.raises(ModelError, match="trip count is known at run time only"):
        load(counted(None, "c", grow=True))


def test_local_functions_see_their_attributes_and_keep_their_names():
    body = [
        helper.make_node("LeakyRelu", ["a"], ["t"], "leak"),
        helper.make_node("Neg", ["t"], ["b"], "minus"),
    ]
    body[0].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    function = helper.make_function(
        "mine", "Odd", ["a"], ["b"], body, [helper.make_opsetid("", 17)], ["slope"]
    )
    layer = helper.make_node("Odd", ["x"], ["y"], "odd", domain="mine", slope=0.25)
    model = model_of([layer], {"x": (4,)}, ["y"], functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    graph, feeds = load(model), {"x": normal(4)}
    assert_near(values(graph, feeds)[0], runtime(model, feeds)[0])
    assert set(graph.provenance.values()) == {("odd/leak",), ("odd/minus",)}


def test_nodes_out_of_order_and_dead_nodes():
    nodes = [
        node("Neg", "a", "y"),
        helper.make_node("Nonsense", ["x"], ["dead"]),
        node("Relu", "x", "a"),
    ]
    assert prims(load(model_of(nodes, {"x": (2,)}, ["y"]))) == ["max", "neg"]


def test_very_deep_graphs():
    nodes = [node("Add", f"v{i} x", f"v{i + 1}") for i in range(12_000)]
    graph = load(model_of(nodes, {"v0": (1,), "x": (1,)}, ["v12000"]))
    assert len(graph.primitives) == 12_000
    assert len(list(walk([graph.outputs[0].node]))) == 12_002


def test_softmax_flattens_up_to_opset_12():
    x = normal(2, 3, 4)
    e = np.exp(x.astype(np.float64))
    for opset, axes in ((11, (1, 2)), (13, (2,))):
        graph = load(model_of([node("Softmax", "x", "y")], {"x": x.shape}, ["y"], opset=opset))
        want = e / e.sum(axes, keepdims=True)
        np.testing.assert_allclose(values(graph, {"x": x}, True)[0], want, 1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_layer_norm_keeps_its_statistics_in_single_precision(dtype):
    """1e3 squared overflows f16; a stash in f32 does not."""
    x = (np.arange(8, dtype=np.float64).reshape(2, 4) * 7 + 1000).astype(dtype)
    constants = {"w": np.ones(4, dtype), "b": np.zeros(4, dtype)}
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    layer = node("LayerNormalization", "x w b", "y")
    (y,) = values(load(model_of([layer], {"x": x}, {"y": code}, constants)), {"x": x})
    x = x.astype(np.float64)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.astype(np.float64), want, 4e-3 if dtype == np.float16 else 1e-5)
