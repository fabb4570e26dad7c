"""Strassen's multiplication against numpy in float64: odd extents, layouts, prologues, epilogues.

Bound (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 23.2.2,
Winograd's form, one level): |error| <= 18 (h^2 + 6 h) u max|A| max|B| with h = K / 2. It is far
from tight, so the root mean square is compared with that of the direct kernel too."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_last
from fissile.ir.types import of
from fissile.kernels.candidate import Kernel, No
from fissile.targets.cpu.impls import contractions, strassen
from fissile.targets.cpu.machine import Machine, this_machine

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

UNIT = 2.0**-24
LAST = channels_last(4)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LEAST", "LEAST_ROWS", "LEAST_SIDE"):
        monkeypatch.setattr(strassen, limit, 1)


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(
    output: Value,
    k: int,
    layouts: Mapping[Value, Layout] | None = None,
    machine: Machine | None = None,
    **params: int,
) -> None:
    machine = machine or this_machine()
    candidate = candidate_of([output], dict(layouts or {}), **params)
    kernel = strassen.lower(candidate, machine)
    assert isinstance(kernel, Kernel), kernel
    inputs = [noise(*v.shape, seed=i) for i, v in enumerate(candidate.region.tensors)]
    (want,) = expected(candidate, inputs)
    (got,) = run_kernel(candidate, kernel, inputs)
    largest = max([1.0, *(np.abs(v.array).max() for v in candidate.region.parameters)])
    limit = 18 * (k * k / 4 + 3 * k) * UNIT * largest * max(np.abs(x).max() for x in inputs)
    assert np.abs(got - want).max() <= limit + UNIT * np.abs(want).max()
    if want.size < 256:  # too few values for a mean to mean much
        return
    plain = candidate_of([output], dict(layouts or {}))
    direct = contractions.lower(plain, machine)
    assert isinstance(direct, Kernel)
    (other,) = run_kernel(plain, direct, inputs)
    rms = [np.sqrt(np.mean((y - want) ** 2)) for y in (got, other)]
    assert rms[0] <= 4 * rms[1] + UNIT * np.abs(want).max()


@settings(max_examples=30, deadline=None)
@example(m=2, n=1, k=1, blocks=3)
@given(m=st.integers(2, 90), n=st.integers(1, 50), k=st.integers(1, 50), blocks=st.integers(1, 3))
def test_any_extents(m: int, n: int, k: int, blocks: int) -> None:
    x, w = placeholder(of([m, 2 * k])), p.constant(noise(2 * k, 2 * n))
    y = p.contract(x, w, "mk,kn->mn") + p.constant(noise(2 * n, seed=3))
    check(
        p.maximum(y, 0.0), 2 * k, machine=Machine(vl=this_machine().vl, registers=32), blocks=blocks
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_pointwise_convolution_of_odd_maps(batch: int) -> None:
    x, w = placeholder(of([batch, 64, 7, 7])), p.constant(noise(96, 64, 1, 1))
    other = placeholder(of([batch, 96, 7, 7]))
    y = (
        p.conv(x, w, strides=(1, 1), dilations=(1, 1), groups=1)
        + p.constant(noise(96, 1, 1))
        + other
    )
    check(y, 64, {x: LAST, other: LAST, y: LAST})


@pytest.mark.parametrize("blocks", [0, 3, 6])
@pytest.mark.parametrize("form", ["tokens", "maps"])
def test_a_sample_of_a_batch_does_not_touch_another(form: str, blocks: int) -> None:
    """NaN in the second of three samples stays there; huge values in it cost the others nothing."""
    if form == "tokens":
        x, w = placeholder(of([3, 50, 64])), p.constant(noise(64, 96))
        y, layouts = p.contract(x, w, "bmk,kn->bmn"), {}
    else:
        x, w = placeholder(of([3, 64, 7, 7])), p.constant(noise(96, 64, 1, 1))
        y = p.conv(x, w, strides=(1, 1), dilations=(1, 1), groups=1)
        layouts = {x: LAST, y: LAST}
    candidate = candidate_of([y], layouts, **({"blocks": blocks} if blocks else {}))
    kernel = strassen.lower(candidate, this_machine())
    assert isinstance(kernel, Kernel), kernel
    data = noise(*x.shape)
    (clean,) = run_kernel(candidate, kernel, [data])
    for odd in (np.nan, 1e8):
        other = data.copy()
        other[1, ..., 3] = odd
        (got,) = run_kernel(candidate, kernel, [other])
        assert np.array_equal(got[[0, 2]], clean[[0, 2]])
        assert np.isfinite(got[1]).all() == np.isfinite(odd)


def test_prologue_and_transposed_weights() -> None:
    x, w = placeholder(of([1, 130, 128])), p.constant(noise(192, 128))
    y = p.contract(p.sigmoid(x) * 2.0, w, "bmk,nk->bmn")
    check(y, 128)


def test_columns_of_several_axes() -> None:
    x, w = placeholder(of([40, 64])), p.constant(noise(64, 4, 32))
    check(p.contract(x, w, "mk,khd->mhd"), 64)


def test_narrow_registers() -> None:
    x, w = placeholder(of([50, 64])), p.constant(noise(64, 72))
    machine = Machine(vl=this_machine().vl, registers=16)
    check(p.contract(x, w, "mk,kn->mn"), 64, machine=machine)


@pytest.mark.parametrize(
    ("m", "k", "n", "reason"), [(64, 65, 64, "odd"), (64, 64, 63, "odd"), (1, 64, 64, "small")]
)
def test_refusals(monkeypatch, m: int, k: int, n: int, reason: str) -> None:
    monkeypatch.setattr(strassen, "LEAST_ROWS", 8)
    x, w = placeholder(of([m, k])), p.constant(noise(k, n))
    refusal = strassen.lower(candidate_of([p.contract(x, w, "mk,kn->mn")]), this_machine())
    assert isinstance(refusal, No) and reason in refusal.reason
