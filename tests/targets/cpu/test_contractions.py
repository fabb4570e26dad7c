"""Contractions against numpy in float64: orientations, layouts, packing, epilogues, odd extents."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_last
from fissile.ir.types import I32, of
from fissile.targets.cpu.impls import contractions
from fissile.targets.cpu.machine import Machine, this_machine

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

LAST = channels_last(4)
HERE = this_machine()


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(
    outputs: Value | Sequence[Value],
    layouts: Mapping[Value, Layout] | None = None,
    machine: Machine = HERE,
) -> str:
    """The kernel's text, once its values are those of numpy to 1e-6 of scale for each root of K."""
    outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
    candidate = candidate_of(outputs, dict(layouts or {}))
    kernel = contractions.lower(candidate, machine)
    assert kernel, kernel
    inputs = [noise(*v.shape, seed=k) for k, v in enumerate(candidate.region.tensors)]
    results = run_kernel(candidate, kernel, inputs)
    for got, want in zip(results, expected(candidate, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=4e-6 * max(np.abs(want).max(), 1e-3))
    return kernel.source


def gelu(x: Value) -> Value:
    return x * (p.erf(x * 0.70710678) + 1.0) * 0.5


@settings(max_examples=25, deadline=None)
@given(m=st.integers(1, 70), n=st.integers(2, 70), k=st.integers(1, 70), constant=st.booleans())
def test_any_extents(m: int, n: int, k: int, constant: bool) -> None:
    x = placeholder(of([m, k]))
    w = p.constant(noise(k, n)) if constant else placeholder(of([k, n]))
    y = p.contract(x, w, "mk,kn->mn") + p.constant(noise(n, seed=3))
    check(p.maximum(y, 0.0))


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("mk,nk->mn", (33, 40), (50, 40)),
        ("km,kn->mn", (40, 33), (40, 50)),
        ("mk,kn->nm", (33, 40), (40, 50)),
        ("bmk,bkn->bmn", (3, 20, 17), (3, 17, 48)),
        ("bhqd,bhkd->bhqk", (1, 4, 33, 24), (1, 4, 35, 24)),
        ("bhqk,bhkd->bhqd", (2, 3, 20, 31), (2, 3, 31, 32)),
        ("bhqk,bkhd->bqhd", (1, 4, 33, 29), (1, 29, 4, 16)),
        ("abk,kn->abn", (2, 7, 384), (384, 33)),
        ("k,kn->n", (100,), (100, 33)),
        ("mk,k->m", (33, 100), (100,)),
        ("m,n->mn", (33,), (50,)),
        ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 6, 7)),
    ],
)  # fmt: skip
def test_specs(spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for b in (placeholder(of(right)), p.constant(noise(*right))):
        y = p.contract(placeholder(of(left)), b, spec)
        check(y * 0.5)


@pytest.mark.parametrize("layout", [None, LAST])
@pytest.mark.parametrize(("c", "m", "size"), [(16, 24, 14), (64, 7, 7), (3, 33, 9), (24, 16, 1)])
def test_pointwise_convolutions(layout: Layout | None, c: int, m: int, size: int) -> None:
    x, r = placeholder(of([2, c, size, size])), placeholder(of([2, m, size, size]))
    y = p.conv(x, p.constant(noise(m, c, 1, 1)), (1, 1), (1, 1)) + p.constant(noise(m, 1, 1))
    out = p.maximum(y + r, 0.0)
    check(out, dict.fromkeys((x, r, out), layout) if layout else {})


def test_pointwise_convolution_reads_one_layout_and_gives_the_other() -> None:
    x = placeholder(of([1, 32, 12, 12]))
    y = p.conv(x, p.constant(noise(48, 32, 1, 1)), (1, 1), (1, 1))
    check(y, {y: LAST})
    check(y, {x: LAST})


@pytest.mark.parametrize("layout", [None, LAST])
@pytest.mark.parametrize("spec", ["nchw,yh->ncyw", "nchw,xw->nchx"])
def test_resizes_along_an_axis(layout: Layout | None, spec: str) -> None:
    x = placeholder(of([2, 20, 8, 8]))
    y = p.contract(x, p.constant(noise(24, 8)), spec)
    check(y, {x: layout, y: layout} if layout else {})


def test_a_constant_left_operand_is_laid_out_when_the_model_is_built() -> None:
    x = placeholder(of([2, 90, 70]))
    for shape, spec in (((70, 80), "bsk,kn->bns"), ((2, 70, 80), "bsk,bkn->bns")):
        text = check(p.contract(x, p.constant(noise(*shape)), spec) + 1.0)
        assert " a + " not in text and "float* a" not in text


def test_prologues_are_packed() -> None:
    x, z = placeholder(of([1, 40, 64])), placeholder(of([64, 48]))
    check(p.contract(p.maximum(x, 0.0), p.exp(z), "abk,kn->abn"))
    check(p.contract(p.pad(x, (0, 1, 0), (0, 2, 0)), p.constant(noise(64, 32)), "abk,kn->abn"))
    heads = p.transpose(p.reshape(x, (1, 40, 4, 16)), (0, 2, 1, 3))
    check(p.contract(heads, heads, "bhqd,bhkd->bhqk"))


def test_heads_split_and_merge_in_the_epilogue() -> None:
    x, w = placeholder(of([1, 40, 64])), p.constant(noise(64, 64))
    y = p.contract(x, w, "abk,kn->abn") + p.constant(noise(64))
    check(p.transpose(p.reshape(y, (1, 40, 4, 16)), (0, 2, 1, 3)))
    a = placeholder(of([1, 4, 40, 40]))
    v = p.transpose(p.reshape(x, (1, 40, 4, 16)), (0, 2, 1, 3))
    out = p.transpose(p.contract(a, v, "bhqk,bhkd->bhqd"), (0, 2, 1, 3))
    check(p.reshape(out, (1, 40, 64)))


def test_several_outputs_and_a_heavy_epilogue() -> None:
    x = placeholder(of([50, 33]))
    y = p.contract(x, p.constant(noise(33, 70)), "mk,kn->mn")
    check((y, gelu(y)))


def test_both_vector_lengths() -> None:
    if HERE.vl < 16:
        pytest.skip("needs a wider machine")
    x = placeholder(of([30, 20]))
    y = p.contract(x, p.constant(noise(20, 50)), "mk,kn->mn")
    narrow = Machine(8, 16, HERE.l1_bytes, HERE.l2_bytes, HERE.l3_bytes, 1)
    candidate = candidate_of((y,), {})
    kernel = contractions.lower(candidate, narrow)
    assert kernel, kernel
    inputs = [noise(30, 20)]
    (got,) = run_kernel(candidate, kernel, inputs, flags=("-DFISSILE_NARROW",))
    np.testing.assert_allclose(got, expected(candidate, inputs)[0], atol=1e-4)


def refused(*outputs: Value) -> str:
    result = contractions.lower(candidate_of(outputs, {}), HERE)
    assert not result
    return result.reason  # pyright: ignore


def test_refusals_have_reasons() -> None:
    x, w = placeholder(of([8, 8])), p.constant(noise(8, 8))
    y = p.contract(x, w, "mk,kn->mn")
    assert "contractions" in refused(p.contract(y, w, "mk,kn->mn"))
    assert "f32" in refused(
        p.contract(placeholder(of([4, 4], I32)), placeholder(of([4, 4], I32)), "mk,kn->mn")
    )
    assert "element by element" in refused(p.pad(y, (1, 1), (1, 1)))
    assert "another place" in refused(y + p.transpose(y, (1, 0)))
    image = placeholder(of([1, 4, 8, 8]))
    assert "window" in refused(p.conv(image, p.constant(noise(4, 4, 3, 3)), (1, 1), (1, 1)))
