"""Winograd's weights are stored plain, packed when the artifact is opened, and bound in memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from models import model_of, node

import fissile
from fissile.compile import implement
from fissile.ir.evaluate import evaluate
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.select.limits import OPENED, RESULTS, limits
from fissile.targets.cpu.target import Cpu


def network(channels, size):
    """A chain of 3x3 convolutions, stride 1."""
    rng = np.random.default_rng(3)
    constants = {
        f"k{i}": rng.standard_normal((m, c, 3, 3)).astype(np.float32) / np.float32(3 * c**0.5)
        for i, (c, m) in enumerate(pairwise(channels))
    }
    nodes = [
        node("Conv", f"t{i} k{i}", f"t{i + 1}", pads=[1, 1, 1, 1]) for i in range(len(constants))
    ]
    return model_of(nodes, {"t0": (1, channels[0], size, size)}, [f"t{len(constants)}"], constants)


def test_an_artifact_stores_the_weights_of_the_model(tmp_path):
    model = network((64, 64, 48), 24)
    built = fissile.compile(model, threads=2, tune=0, folder=tmp_path / "a")
    memory = built.manifest.memory
    weights = 9 * 64 * (64 + 48) * 4
    assert memory["opened_bytes"] > weights, "no kernel of Winograd was chosen: choose another net"
    assert (tmp_path / "a" / "weights.bin").stat().st_size < 1.01 * weights
    graph = load(model)
    x = np.random.default_rng(0).standard_normal((1, 64, 24, 24)).astype(np.float32)
    (want,) = evaluate(graph, [x])
    np.testing.assert_allclose(built(x), want, rtol=0, atol=2e-5 * np.abs(want).max())


def shares_of(model):
    graph = load(model)
    cpu = Cpu(graph)
    candidates = implement(graph, cpu, identify(graph, cpu.limits, cpu.admissible))
    return limits(graph, candidates), candidates


def test_memory_is_limited_where_all_at_once_exceed_it():
    """Deep layers on few pixels: F(4,3) wants 4 times their weights, 1.5 times are allowed."""
    shares, candidates = shares_of(network((256, 256), 8))
    (share,) = shares
    largest = max((c for c in candidates if c.param.get("m") == 4), key=share)
    weights, padded = 9 * 256 * 256 * 4, 256 * 10 * 10 * 4
    assert share(largest) == 4 * weights / (OPENED * weights + RESULTS * padded)
    assert all(share(c) == 0 for c in candidates if c.impl != "winograd")


def test_no_row_where_everything_fits():
    assert shares_of(network((16, 16), 96))[0] == ()
