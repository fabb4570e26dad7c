"""Block fixed point against numpy in float64.

Bound: with |x - s p| <= s / 2, |w - t q| <= t / 2 and exact sums in each block,

    |error| <= sum_k (|x| t / 2 + |w| s / 2 + s t / 4) + rounding in f32,
    s = max_k |x| / (2^14 - 1)

where t is what the packer may make of a column; it then fits the scale to what it rounded, which
moves an element by less than a tenth of t."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.layout import Layout, channels_last
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate, Kernel, No, Packing
from fissile.targets.cpu.impls import fixed
from fissile.targets.cpu.impls.fixed import blocks_of
from fissile.targets.cpu.machine import Machine, this_machine
from fissile.targets.cpu.packing import PACKERS, pack
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

LAST = channels_last(4)
MACHINE = replace(this_machine(), pairs=True)  # another runs it too, slowly


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LEAST", "LEAST_TERMS", "LEAST_COLUMNS"):
        monkeypatch.setattr(fixed, limit, 1)


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lowered(
    output: Value, layouts: dict[Value, Layout] | None = None, machine: Machine = MACHINE
) -> tuple[Candidate, Kernel]:
    candidate = candidate_of([output], layouts or {})
    kernel = fixed.lower(candidate, machine)
    assert isinstance(kernel, Kernel), kernel
    return candidate, kernel


def bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of x w, from what the docstring says."""
    x, w = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
    s = x.max(1, keepdims=True) / 16383
    t = scales(w)
    k = x.shape[1]
    f32 = 2.0**-22 * (x @ w) * (2 + k / 64)
    return x.sum(1, keepdims=True) * t * 0.51 + w.sum(0) * s / 2 + k * s * t / 4 + f32


def scales(w: np.ndarray) -> np.ndarray:
    """The most that a column's scale may be: its block sums take 17 bits, its largest 15."""
    blocks, pairs = blocks_of(w.shape[0])
    padded = np.zeros((blocks * 2 * pairs, w.shape[1]))
    padded[: w.shape[0]] = np.abs(w)
    sums = padded.reshape(blocks, 2 * pairs, -1).sum(1).max(0)
    return np.maximum(sums / (2**17 - 2 * pairs - 2), padded.max(0) / 32760)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 90), n=st.integers(2, 70), k=st.integers(1, 200), threads=st.integers(1, 3))
def test_any_extents(m: int, n: int, k: int, threads: int) -> None:
    x, w, b = placeholder(of([m, k])), noise(k, n), noise(n, seed=3)
    y = p.maximum(p.contract(x, p.constant(w), "mk,kn->mn") + p.constant(b), 0.0)
    candidate, kernel = lowered(y, machine=replace(MACHINE, threads=threads))
    a = noise(m, k, seed=1)
    (got,), (want,) = run_kernel(candidate, kernel, [a]), expected(candidate, [a])
    assert np.all(np.abs(got - want) <= bound(a, w) + 2.0**-22 * (np.abs(want) + np.abs(b)))


def test_no_sum_overflows() -> None:
    """Everything as large as it may be, and of one sign."""
    x, w = placeholder(of([20, 256])), np.ones((256, 32), np.float32)
    candidate, kernel = lowered(p.contract(x, p.constant(w), "mk,kn->mn"))
    for a in (np.full((20, 256), 3.0, np.float32), np.full((20, 256), -3e35, np.float32)):
        (got,) = run_kernel(candidate, kernel, [a])
        np.testing.assert_allclose(got, a @ w, rtol=4e-5)


def test_rows_of_different_size_do_not_disturb_each_other() -> None:
    x, w = placeholder(of([40, 96])), noise(96, 48)
    candidate, kernel = lowered(p.contract(x, p.constant(w), "mk,kn->mn"))
    a = noise(40, 96) * np.float32(10.0) ** np.arange(-20, 20, dtype=np.float32)[:, None]
    (got,), (want,) = run_kernel(candidate, kernel, [a]), expected(candidate, [a])
    assert np.all(np.abs(got - want) <= bound(a, w))


def test_zeros_and_what_is_no_number() -> None:
    """A row of zeros gives zeros; one with an infinity or a NaN gives NaN; others stay as they
    are."""
    x, w = placeholder(of([5, 64])), noise(64, 32)
    candidate, kernel = lowered(p.contract(x, p.constant(w), "mk,kn->mn"))
    a = noise(5, 64)
    a[1], a[2, 3], a[3, 60] = 0.0, np.nan, -np.inf
    (got,) = run_kernel(candidate, kernel, [a])
    assert not got[1].any() and np.isnan(got[2:4]).all()
    np.testing.assert_allclose(got[[0, 4]], a[[0, 4]] @ w, rtol=0, atol=5e-3)


@pytest.mark.parametrize("batch", [1, 3])
def test_pointwise_convolution(batch: int) -> None:
    x, w = placeholder(of([batch, 64, 7, 7])), noise(96, 64, 1, 1)
    other = placeholder(of([batch, 96, 7, 7]))
    y = p.conv(x, p.constant(w), strides=(1, 1), dilations=(1, 1)) + other
    candidate, kernel = lowered(y, {x: LAST, other: LAST, y: LAST})
    inputs = [noise(*v.shape, seed=i) for i, v in enumerate(candidate.region.tensors)]
    (got,), (want,) = run_kernel(candidate, kernel, inputs), expected(candidate, inputs)
    assert np.abs(got - want).max() <= 5e-4 * np.abs(want).max()


def test_prologue_and_transposed_weights() -> None:
    x, w = placeholder(of([1, 130, 128])), noise(192, 128)
    y = p.contract(p.sigmoid(x) * 2.0, p.constant(w), "bmk,nk->bmn")
    candidate, kernel = lowered(y)
    a = noise(1, 130, 128)
    (got,), (want,) = run_kernel(candidate, kernel, [a]), expected(candidate, [a])
    rows = 2 / (1 + np.exp(-a[0].astype(np.float64)))
    assert np.all(np.abs(got[0] - want[0]) <= bound(rows, w.T) + 1e-5)


def test_sums_and_columns_of_several_axes() -> None:
    x, w = placeholder(of([40, 4, 24])), noise(4, 24, 3, 16)
    candidate, kernel = lowered(p.contract(x, p.constant(w), "mhd,hdac->mac"))
    a = noise(40, 4, 24)
    (got,), (want,) = run_kernel(candidate, kernel, [a]), expected(candidate, [a])
    limit = bound(a.reshape(40, -1), w.reshape(96, -1))
    assert np.all(np.abs(got - want).reshape(40, -1) <= limit)


def test_the_error_is_as_announced() -> None:
    x, w = placeholder(of([200, 384])), noise(384, 128)
    candidate, kernel = lowered(p.contract(x, p.constant(w), "mk,kn->mn"))
    a = noise(200, 384, seed=5)
    (got,), (want,) = run_kernel(candidate, kernel, [a]), expected(candidate, [a])
    rms = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
    assert 0.5 * fixed.error(candidate) < rms < fixed.error(candidate)


def test_the_packed_form() -> None:
    """Scales and pairs give the weights back within half a scale, and their sums keep the bound."""
    w = noise(100, 19) * np.float32(10.0) ** np.arange(-9, 10, dtype=np.float32)
    w[:, 3] = 0.0
    w[5, 4] = 1e30  # the others vanish
    blocks, pairs = blocks_of(100)
    packed = PACKERS["fixed_panels"](w, (0,), (1,), 16, pairs).reshape(2, -1)
    scale = packed[:, :16].reshape(-1)
    q = np.ascontiguousarray(packed[:, 16:]).view(np.int16).reshape(2, blocks * pairs, 16, 2)
    q = q.transpose(1, 3, 0, 2).reshape(blocks, 2 * pairs, 32).astype(np.int64)
    assert np.abs(q).sum(1).max() < 1 << 17
    back = (q * scale).reshape(-1, 32)
    assert not back[100:].any() and not back[:, 19:].any()
    assert np.all(np.abs(back[:100, :19] - w) <= 0.6 * scale[:19])


@pytest.mark.parametrize(("limit", "k", "n"), [("LEAST_TERMS", 15, 64), ("LEAST_COLUMNS", 64, 15)])
def test_small_ones_are_refused(monkeypatch, limit: str, k: int, n: int) -> None:
    monkeypatch.setattr(fixed, limit, 16)
    x, w = placeholder(of([64, k])), p.constant(noise(k, n))
    refusal = fixed.lower(candidate_of([p.contract(x, w, "mk,kn->mn")]), MACHINE)
    assert isinstance(refusal, No) and "few" in refusal.reason


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_are_refused(odd: float) -> None:
    x, w = placeholder(of([64, 128])), noise(128, 128)
    w[3, 5] = odd
    y = p.contract(x, p.constant(w), "mk,kn->mn")
    refusal = fixed.lower(candidate_of([y]), MACHINE)
    assert isinstance(refusal, No) and "infinite" in refusal.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("packing", [
    Packing("fixed_panels", ((0,), (1,), 16, 32)),
    Packing("strassen_panels", ((0,), (1,), 16)),
])  # fmt: skip
def test_packing_is_silent_about_them(packing: Packing) -> None:
    w = noise(128, 64)
    w[3, 5], w[70, 40], w[90, 5] = np.inf, -np.inf, 3e38
    assert not np.isfinite(pack(w, packing)).all()


@pytest.mark.parametrize(
    ("error", "pairs", "offered"), [(1e-3, True, True), (2e-5, True, False), (1e-3, False, False)]
)
def test_it_is_offered_where_the_accuracy_and_the_processor_allow(error, pairs, offered) -> None:
    x, w = placeholder(of([64, 128])), p.constant(noise(128, 128))
    candidate = candidate_of([p.contract(x, w, "mk,kn->mn")])
    machine = replace(this_machine(), pairs=pairs)
    graph = graph_of(candidate)
    found = Cpu(graph, machine, error=error).implementations(candidate.region)
    assert any(c.impl == "fixed" for c in found) == offered


def graph_of(candidate: Candidate):
    region = candidate.region
    return Graph(region.tensors, region.outputs, ("x",), ("y",))
