"""Whole networks: compiled, verified against float64, and equal to ONNX Runtime.

Kernels are measured for a few seconds only: the choice may differ from run to run, the answer may
not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import NAMES, network

import fissile
from fissile.onnx.load import load
from fissile.onnx.save import save

CASES = [n for n in NAMES if n.startswith("case_")]
SMALL = ["mobilenetv2_100"]
LARGE = [n for n in NAMES if n not in (*CASES, *SMALL)]


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    known = {t.name for t in model.graph.initializer}
    arrays: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name not in known:
            whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            arrays[value.name] = (
                rng.integers(0, 1000, shape) if whole else rng.standard_normal(shape, np.float32)
            )
    return arrays


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compiled_equals_onnxruntime(name: str, tmp_path: Path, tune: float, threads: int) -> None:
    model = network(name)
    store = tmp_path / "times.sqlite"
    exe = fissile.compile(model, threads=threads, tune=tune, store=store)
    given = feeds(model)
    want = session(model).run(None, given)
    got = list(exe.run(given).values())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4 * np.abs(b).max())
    assert exe.stages.values["verify"].error <= exe.stages.values["verify"].allowed
    assert exe.selection.gap <= 1e-3


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, tmp_path: Path) -> None:
    compiled_equals_onnxruntime(name, tmp_path, tune=0, threads=2)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name: str, tmp_path: Path) -> None:
    compiled_equals_onnxruntime(name, tmp_path, tune=10, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_networks(name: str, tmp_path: Path) -> None:
    compiled_equals_onnxruntime(name, tmp_path, tune=30, threads=2)


@pytest.mark.parametrize("name", [*CASES, "mobilenetv2_100"])
def test_threads_give_the_same_bits(name: str, tmp_path: Path) -> None:
    model = network(name)
    exe = fissile.compile(model, threads=1, tune=0, verify=False, folder=tmp_path / "m")
    given = feeds(model)
    one = exe.run(given)
    for threads in (2, 3):
        other = fissile.load(tmp_path / "m", threads=threads).run(given)
        for key in one:
            assert one[key].tobytes() == other[key].tobytes()


@pytest.mark.parametrize("name", [*CASES, "mobilenetv2_100", "minilm_128"])
def test_fission_gives_valid_onnx_with_the_same_outputs(name: str) -> None:
    model = network(name)
    primitives = save(load(model))
    onnx.checker.check_model(primitives, full_check=True)
    given = feeds(model)
    for a, b in zip(
        session(primitives).run(None, given), session(model).run(None, given), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())
