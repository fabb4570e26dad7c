"""`fission --optimize` on whole blocks of networks: valid ONNX with the same results."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import NAMES, network

from fissile.cli import main
from fissile.ir.evaluate import evaluate
from fissile.onnx.load import load
from fissile.onnx.save import save
from fissile.rewrite.rules import RULES
from fissile.select.spellings import for_runtimes

PARTS = [n for n in NAMES if n.startswith("case_")]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_networks(name):
    model = network(name)
    graph = load(model)
    written = save(for_runtimes(graph, RULES.values()), whole=True)
    onnx.checker.check_model(written, full_check=True)
    feeds = [
        np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs
    ]
    session = onnxruntime.InferenceSession(written.SerializeToString())
    got = session.run(None, dict(zip(graph.input_names, feeds, strict=True)))
    for g, w in zip(got, evaluate(graph, feeds, reference=True), strict=True):
        scale = float(np.abs(w).max())
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * scale)
    assert len(written.graph.node) <= len(save(graph).graph.node)


def test_the_command_writes_it(tmp_path):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(network("case_segformer_attn"), source)
    assert main(["fission", str(source), "-o", str(target), "--optimize"]) == 0
    assert onnx.load(target).graph.node
