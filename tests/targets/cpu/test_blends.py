"""Contractions with matrices of few terms: against numpy, and bit for bit against the product."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.cost.model import flops
from fissile.ir import prims as p
from fissile.ir.graph import Graph, placeholder
from fissile.ir.layout import Layout, channels_last, row_major
from fissile.ir.types import F64, of
from fissile.kernels.blend import blend_of
from fissile.kernels.candidate import Candidate
from fissile.kernels.identify import Limits, identify
from fissile.targets.cpu.impls import contractions, conv, loops, maps, rows
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

LAST = channels_last(4)
HERE = this_machine()


def few(out: int, extent: int, terms: int, seed: int = 0) -> np.ndarray:
    """A matrix with up to `terms` non-zeros in a row; some rows have none."""
    rng, m = np.random.default_rng(seed), np.zeros((out, extent), np.float32)
    for z in range(out):
        places = rng.choice(extent, rng.integers(0, terms + 1), replace=False)
        m[z, places] = rng.standard_normal(len(places))
    m[0] = 0
    m[0, rng.choice(extent, terms, replace=False)] = 1.5
    return m


def run(candidate: Candidate, lower=maps.lower) -> list[np.ndarray]:
    kernel = lower(candidate, HERE)
    assert kernel, kernel
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(v.shape).astype(np.float32) for v in candidate.region.tensors]
    results = run_kernel(candidate, kernel, inputs)
    for got, want in zip(results, expected(candidate, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * max(np.abs(want).max(), 1))
    return results


@settings(max_examples=20, deadline=None)
@given(
    out=st.integers(1, 40), extent=st.integers(4, 40), terms=st.integers(1, 8),
    axis=st.integers(0, 3), flip=st.booleans(), first=st.booleans(), last=st.booleans(),
)  # fmt: skip
def test_any_axis_and_number_of_terms(
    out: int, extent: int, terms: int, axis: int, flip: bool, first: bool, last: bool
) -> None:
    terms = max(1, min(terms, extent // 4))
    shape = [2, 17, 5, 6]
    shape[axis] = extent
    x, m = placeholder(of(shape)), p.constant(few(out, extent, terms, out).T if flip else
                                              few(out, extent, terms, out))  # fmt: skip
    k = "abcd"[axis]
    weights, result = f"{k}z" if flip else f"z{k}", "abcd".replace(k, "z")
    y = p.contract(m, x, f"{weights},abcd->{result}") if first else (
        p.contract(x, m, f"abcd,{weights}->{result}"))  # fmt: skip
    blend = blend_of(y.node)
    assert blend and (blend.axis, blend.terms) == (axis, terms)
    layouts = dict.fromkeys((x, y), LAST) if last else {}
    run(candidate_of((y,), layouts))


@pytest.mark.parametrize("layout", [row_major(4), LAST])
@pytest.mark.parametrize("spec", ["abcd,zc->abzd", "abcd,zd->abcz"])
def test_the_same_bits_as_the_product(layout: Layout, spec: str) -> None:
    x = placeholder(of([1, 20, 16, 16]))
    y = p.contract(x, p.constant(few(50, 16, 4)), spec)
    candidate = candidate_of((y,), dict.fromkeys((x, y), layout))
    (a,), (b,), (c,) = (run(candidate, f.lower) for f in (maps, contractions, loops))
    assert a.tobytes() == b.tobytes()
    np.testing.assert_allclose(c, a, atol=1e-5)


def test_blends_stand_in_every_kind_of_kernel() -> None:
    x = placeholder(of([1, 20, 8, 16]))
    y = p.contract(x, p.constant(few(24, 8, 2)), "abcd,zc->abzd")
    y = p.contract(y, p.constant(few(32, 16, 4)), "abcd,zd->abcz")
    both = {x: LAST}
    run(candidate_of((out := p.maximum(y + 1.0, 0.0),), {**both, out: LAST}))
    out = p.concat([y, p.neg(y)], 1)
    run(candidate_of((out,), {**both, out: LAST}))
    for weights in (p.constant(few(9, 20, 4)), p.constant(np.ones((9, 20), np.float32))):
        out = p.contract(y, weights, "abcd,zb->azcd")  # the second is no blend
        lower = maps.lower if blend_of(out.node) else contractions.lower
        run(candidate_of((out,), {**both, out: LAST}), lower)
    out = p.conv(p.pad(y, (0, 0, 1, 1), (0, 0, 1, 1)),
                 p.constant(np.ones((8, 20, 3, 3), np.float32) / 64), (1, 1), (1, 1))  # fmt: skip
    run(candidate_of((out,), {**both, out: LAST}), conv.lower)
    run(candidate_of((p.reduce_sum(y, (1,)),), both), rows.lower)


def test_a_matrix_that_is_read_in_two_ways() -> None:
    x, m = placeholder(of([1, 16, 16, 16])), p.constant(few(16, 16, 2))
    y = p.contract(x, m, "abcd,zc->abzd")
    z = p.contract(y, m, "abcd,zd->abcz")  # the same rows: one table
    run(candidate_of((z,), {x: LAST, z: LAST}))
    both = y * p.reshape(m, (1, 1, 16, 16))  # and as it is
    assert not maps.lower(candidate_of((both,), {x: LAST, both: LAST}), HERE)


@pytest.mark.parametrize(
    ("weights", "spec"),
    [
        (few(24, 16, 5), "abcd,zc->abzd"),  # too many terms
        (few(16, 16, 2), "abcd,cd->abc"),  # a sum over two axes
        (few(8, 16, 2), "abcd,zc->abdz"),  # a move besides
        (few(24, 16, 2).astype(np.float64), "abcd,zc->abzd"),
    ],
)
def test_what_is_no_blend(weights: np.ndarray, spec: str) -> None:
    dtype = F64 if weights.dtype == np.float64 else None
    x = placeholder(of([1, 8, 16, 16], dtype) if dtype else of([1, 8, 16, 16]))
    assert blend_of(p.contract(x, p.constant(weights), spec).node) is None


def test_signatures_tell_matrices_of_few_terms_from_others() -> None:
    x = placeholder(of([1, 8, 16, 16]))
    weights = few(24, 16, 2), few(24, 16, 3), np.ones((24, 16), np.float32)
    ys = [p.contract(x, p.constant(w), "abcd,zc->abzd") for w in weights]
    assert len({candidate_of((y,), {}).key for y in ys}) == 3


def test_a_resize_is_one_kernel_or_two_and_the_product_is_a_rival() -> None:
    x = placeholder(of([1, 8, 16, 16]))
    middle = p.contract(x, p.constant(few(24, 16, 2)), "abcd,zc->abzd")
    y = p.contract(middle, p.constant(few(24, 16, 2)), "abcd,zd->abcz")
    graph = Graph((x,), (y,), ("x",), ("y",))
    cpu = Cpu(graph, HERE)
    regions = identify(graph, Limits(contractions=1), cpu.admissible)
    offered = {(len(r.nodes), c.impl) for r in regions for c in cpu.implementations(r)}
    assert offered == {(1, "map"), (1, "dense"), (2, "map")}


def test_arithmetic_counts_terms() -> None:
    x = placeholder(of([1, 8, 16, 16]))
    y = p.contract(x, p.constant(few(24, 16, 2)), "abcd,zc->abzd")
    assert flops(y.node) == 2 * 2 * 8 * 24 * 16
