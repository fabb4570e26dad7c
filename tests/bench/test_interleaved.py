"""Interleaving: whose turn it is, what a ratio is, and that peers give what we give."""

from __future__ import annotations

import gc
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fissile import bench
from fissile.bench import interleaved
from fissile.errors import ToolchainError
from fissile.peers import PEERS, peer


def test_one_call_a_turn_in_an_order_that_rotates():
    order = []
    engines = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleaved(engines, seconds=0, least=6)
    assert "".join(order) == "abc" * bench.WARM_UP + "abcbcacab" * 2
    assert {t.calls for t in times.values()} == {6}


def test_a_ratio_is_the_median_of_quotients_and_not_the_quotient_of_medians(monkeypatch):
    """Drift hits both engines of a round: a takes 1, 2, 4, ... and b three times as long."""
    us = {"a": [1.0, 2, 4, 8, 16, 32, 64, 128, 256], "b": [3.0, 6, 12, 24, 48, 96, 192, 30, 100]}
    turns = {name: iter(times) for name, times in us.items()}
    engines = {"a": lambda: "a", "b": lambda: "b"}
    monkeypatch.setattr(bench, "_timed_us", lambda call: next(turns[call()]))
    times = interleaved(engines, seconds=0, least=9)
    quotients = np.sort([b / a for a, b in zip(us["a"], us["b"], strict=True)])
    assert times["b"].ratio == pytest.approx(np.median(quotients)) == 3
    assert times["b"].low == quotients[2] and times["b"].high == quotients[6]
    assert times["a"].ratio == 1 and times["a"].median_us == 16 and times["b"].least_us == 3


def test_times_are_microseconds_and_last_as_long_as_asked():
    engines = {"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.003)}
    start = time.monotonic()
    times = interleaved(engines, seconds=0.3)
    assert 0.3 <= time.monotonic() - start < 3
    assert times["short"].least_us >= 1000 and times["long"].least_us >= 3000
    assert 1.2 < times["long"].ratio < 3.5
    assert gc.isenabled()


def test_progress_is_shown_now_and_then(monkeypatch):
    monkeypatch.setattr(bench, "SHOWN_S", 0.02)
    seen = []
    interleaved(
        {"a": lambda: time.sleep(0.001)}, seconds=0.2, progress=lambda *facts: seen.append(facts)
    )
    assert 3 <= len(seen) <= 11
    assert all(0 <= share <= 1 and left >= 0 for _, share, left in seen)


# ---------------------------------------------------------------- peers


@pytest.fixture(scope="module")
def model():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 8])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in ("s", "d")]
    nodes = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Sub", ["x", "z"], ["d"])]
    graph = helper.make_graph(nodes, "two", [x, z], outputs)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


NEEDS = {"onnxruntime": "onnxruntime", "openvino": "openvino", "inductor": "torch", "mnn": "MNN"}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("as_bytes", [True, False])
def test_peers_give_the_outputs_in_model_order(name, as_bytes, model, tmp_path):
    pytest.importorskip(NEEDS[name])
    if not as_bytes:
        onnx.save(model, tmp_path / "m.onnx")
    source = model.SerializeToString() if as_bytes else str(tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 8)).astype(np.float32) for n in ("x", "z")}
    call = peer(name, source, feeds, threads=1)
    for _ in range(3):
        s, d = call()
        np.testing.assert_allclose(s, feeds["x"] + feeds["z"], rtol=1e-6)
        np.testing.assert_allclose(d, feeds["x"] - feeds["z"], rtol=1e-6)


def test_a_model_that_a_peer_refuses(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    for name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
        with pytest.raises(ToolchainError, match=f"{name} cannot run this model: "):
            peer(name, str(tmp_path / "m.onnx"), {}, 1)


def test_an_unknown_peer():
    with pytest.raises(ToolchainError, match=r"cannot compare with 'abacus'.*onnxruntime"):
        peer("abacus", b"", {}, 1)
