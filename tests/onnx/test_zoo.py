"""Whole networks, where they lie beside the repository: load, evaluate, save, against ONNX Runtime.

The bar is the one for compiled models: at most 8 times the runtime's own error against the float64
reference, or 2e-5 of the output's scale.                                       (design, section 13)
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import SHARED, ZOO, checked, random_feeds, runtime, values

from fissile.onnx.load import load
from fissile.onnx.save import save

PATHS = sorted(ZOO.glob("*.onnx")) + sorted(ZOO.glob("real/*.onnx"))
SMALL_BYTES = 6 << 20


def _shapes() -> dict[str, dict[str, list[int]]]:
    table = SHARED / "models" / "real.json"
    rows = json.loads(table.read_text()) if table.exists() else []
    return {row["name"]: row["shapes"] for row in rows}


def _params():
    for path in PATHS:
        slow = () if path.stat().st_size < SMALL_BYTES else pytest.mark.slow
        yield pytest.param(path, id=path.stem, marks=slow)


def _error(got, want) -> float:
    scale = np.abs(want).max() or 1.0
    return float(np.abs(got.astype(np.float64) - want).max() / scale)


@pytest.mark.parametrize("path", list(_params()))
def test_load_and_save(path):
    graph = load(path, _shapes().get(path.stem))
    feeds = random_feeds(graph)
    feeds |= {"sr": np.array(16000)} if "sr" in feeds else {}
    exact = values(graph, feeds, reference=True)
    theirs = runtime(str(path), feeds)
    ours = runtime(checked(save(graph)), feeds)
    for want, peer, evaluated, saved in zip(exact, theirs, values(graph, feeds), ours, strict=True):
        bound = max(8 * _error(peer, want), 2e-5)
        assert _error(peer, want) < 1e-3
        assert _error(evaluated, want) <= bound and _error(saved, want) <= bound
