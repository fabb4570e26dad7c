"""Library products against numpy in float64, and what happens where a library is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.artifact.load import load
from fissile.artifact.manifest import read
from fissile.compile import compile as compile_model
from fissile.errors import ToolchainError
from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.layout import Layout, channels_last
from fissile.ir.types import I32, of
from fissile.kernels.candidate import Kernel
from fissile.kernels.identify import identify
from fissile.onnx.save import save
from fissile.targets.cpu import libraries
from fissile.targets.cpu.impls import library
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

HERE = [name for name in libraries.LIBRARIES if libraries.found(name)]
LAST = channels_last(4)
each = pytest.mark.parametrize("name", HERE)


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(
    name: str,
    outputs: Value | Sequence[Value],
    layouts: Mapping[Value, Layout] | None = None,
) -> Kernel:
    """The kernel, once its values are those of numpy to 4e-6 of scale, whatever the partition."""
    outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
    candidate = candidate_of(outputs, dict(layouts or {}), impl=name)
    kernel = library.lower(candidate, this_machine())
    assert kernel, kernel
    assert kernel.libraries == (name,)
    inputs = [noise(*v.shape, seed=k) for k, v in enumerate(candidate.region.tensors)]
    results = run_kernel(candidate, kernel, inputs)
    for got, want in zip(results, expected(candidate, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=4e-6 * max(np.abs(want).max(), 1e-3))
    return kernel


@each
@settings(max_examples=12, deadline=None)
@given(
    m=st.integers(60, 300), n=st.integers(70, 600), k=st.integers(64, 200),
    constant=st.booleans(), ta=st.booleans(), tb=st.booleans(),
)  # fmt: skip
def test_any_extents(name: str, m: int, n: int, k: int, constant: bool, ta: bool, tb: bool) -> None:
    x = placeholder(of([k, m] if ta else [m, k]))
    shape = (n, k) if tb else (k, n)
    w = p.constant(noise(*shape)) if constant else placeholder(of(shape))
    y = p.contract(x, w, f"{'km' if ta else 'mk'},{'nk' if tb else 'kn'}->mn")
    check(name, p.maximum(y + p.constant(noise(n, seed=3)), 0.0))


@each
@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("bmk,bkn->bmn", (3, 120, 47), (3, 47, 80)),
        ("bhqd,bhkd->bhqk", (1, 2, 133, 44), (1, 2, 135, 44)),
        ("bhqk,bkhd->bqhd", (1, 4, 93, 129), (1, 129, 4, 36)),
        ("abk,kn->abn", (2, 77, 84), (84, 133)),
        ("mk,kn->nm", (133, 140), (140, 150)),
        ("abcd,cdef->abef", (12, 13, 14, 15), (14, 15, 6, 17)),
        ("k,kn->n", (700,), (700, 500)),
    ],
)  # fmt: skip
def test_specs(name: str, spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for b in (placeholder(of(right)), p.constant(noise(*right))):
        check(name, p.contract(placeholder(of(left)), b, spec) * 0.5)


@each
def test_blocks_of_rows_and_of_columns(name: str) -> None:
    for m, n in ((1536, 96), (96, 1536)):
        y = p.contract(placeholder(of([m, 64])), p.constant(noise(64, n)), "mk,kn->mn")
        assert check(name, (y, p.exp(y))).tiles == 6


@each
@pytest.mark.parametrize("layout", [None, LAST])
def test_pointwise_convolutions(name: str, layout: Layout | None) -> None:
    x, r = placeholder(of([2, 48, 14, 14])), placeholder(of([2, 96, 14, 14]))
    y = p.conv(x, p.constant(noise(96, 48, 1, 1)), (1, 1), (1, 1)) + p.constant(noise(96, 1, 1))
    out = p.maximum(y + r, 0.0)
    check(name, out, dict.fromkeys((x, r, out), layout) if layout else {})
    check(name, y, {y: layout} if layout else {})


@each
def test_operands_that_have_to_be_packed(name: str) -> None:
    x, z = placeholder(of([1, 80, 64])), placeholder(of([64, 96]))
    padded = p.pad(x, (0, 1, 0), (0, 2, 0))
    check(name, p.contract(padded, z, "abk,kn->abn"))
    heads = p.transpose(p.reshape(x, (1, 80, 1, 64)), (0, 2, 1, 3))
    check(name, p.contract(heads, heads, "bhqd,bhkd->bhqk"))
    every = p.slice_(z, (0, 0), (64, 48), (1, 2))
    check(name, p.contract(placeholder(of([128, 64])), every, "mk,kn->mn"))


@each
def test_the_product_moved_behind_it(name: str) -> None:
    x, w = placeholder(of([4, 120, 64])), placeholder(of([4, 64, 96]))
    y = p.contract(x, w, "abk,akn->abn")
    moved = p.reshape(p.transpose(y, (1, 0, 2)), (120, 384))
    check(name, moved)
    check(name, p.exp(moved))


@each
def test_refusals(name: str) -> None:
    def refused(y: Value) -> str:
        reason = library.lower(candidate_of((y,), {}, impl=name), this_machine())
        assert not reason
        return reason.reason  # pyright: ignore

    small = p.contract(placeholder(of([8, 8])), placeholder(of([8, 8])), "mk,kn->mn")
    assert "too little work" in refused(small)
    whole = p.contract(placeholder(of([99, 99], I32)), placeholder(of([99, 99], I32)), "mk,kn->mn")
    assert "not f32" in refused(whole)
    y = p.contract(placeholder(of([120, 64])), placeholder(of([64, 64])), "mk,kn->mn")
    heads = p.transpose(p.reshape(y, (120, 4, 16)), (1, 0, 2))
    assert "not contiguous" in refused(heads)


# ---------------------------------------------------------------- offered, linked, missing


def _linear() -> Graph:
    x = placeholder(of([200, 96]))
    y = p.maximum(p.contract(x, p.constant(noise(96, 130)), "mk,kn->mn"), 0.0)
    return Graph((x,), (y,), ("x",), ("y",))


def _implementations(cpu: Cpu) -> set[str]:
    regions = identify(cpu.graph, cpu.limits, cpu.admissible)
    return {c.impl for r in regions for c in cpu.implementations(r)}


@each
def test_offered_unless_left_out(name: str) -> None:
    graph = _linear()
    assert name in _implementations(Cpu(graph))
    assert name not in _implementations(Cpu(graph, without=(name,)))
    assert not set(libraries.LIBRARIES) & _implementations(Cpu(graph, without=libraries.LIBRARIES))


def test_nothing_changes_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fissile.targets.cpu.target.found", lambda name: None)
    assert _implementations(Cpu(_linear())) == {"map", "contraction"}


@pytest.fixture
def only_library(monkeypatch: pytest.MonkeyPatch) -> str:
    """No other way to compute a contraction."""
    if not HERE:
        pytest.skip("no library here")
    rows = [i for i in Cpu(_linear()).offered if i.name in ("map", HERE[0])]
    monkeypatch.setattr("fissile.targets.cpu.target.IMPLEMENTATIONS", rows)
    return HERE[0]


def test_an_artifact_names_what_it_needs(
    only_library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph, x = _linear(), noise(200, 96)
    exe = compile_model(save(graph), threads=2, tune=0, folder=tmp_path / "m")
    want = np.maximum(x.astype(np.float64) @ graph.nodes[1].outputs[0].array, 0)
    np.testing.assert_allclose(exe(x), want, atol=2e-4)
    (row,) = read(tmp_path / "m").machine["libraries"]
    assert row["name"] == only_library
    assert row["package"] == libraries.LIBRARIES[only_library].package
    one = load(tmp_path / "m", threads=1)(x)
    assert one.tobytes() == exe(x).tobytes()
    monkeypatch.setattr(libraries, "found", lambda name: None)
    with pytest.raises(ToolchainError, match=row["package"]):
        load(tmp_path / "m")


def test_an_artifact_without_libraries_needs_none(tmp_path: Path) -> None:
    none = tuple(libraries.LIBRARIES)
    compile_model(save(_linear()), threads=1, tune=0, folder=tmp_path / "m", without=none)
    assert "libraries" not in read(tmp_path / "m").machine
    shown = subprocess.run(
        ["ldd", str(tmp_path / "m" / "libmodel.so")], capture_output=True, text=True, check=True
    ).stdout
    assert "openblas" not in shown and "dnnl" not in shown
