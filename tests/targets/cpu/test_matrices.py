"""Which matrices may lie by columns, and contractions that read and give them so."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.layout import Layout, row_major, turned
from fissile.ir.types import of
from fissile.kernels.identify import identify
from fissile.targets.cpu.impls import contractions
from fissile.targets.cpu.layouts import layouts
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.matrices import turnable
from fissile.targets.cpu.target import Cpu

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(*shape: int) -> Value:
    return p.constant(noise(*shape))


def scores() -> tuple[Graph, Value]:
    """Queries and keys that both end in the summed axis."""
    x = placeholder(of([2, 24, 32]))
    q = p.contract(x, weights(32, 40), "bsc,cd->bsd")
    k = p.contract(x, weights(32, 40), "bsc,cd->bsd") + weights(40)
    y = p.contract(q, k, "bqd,bkd->bqk")
    return Graph((x,), (y,), ("x",), ("y",)), k


def mixer(exchanged: bool) -> tuple[Graph, Value]:
    """Two products over the axis of tokens, with transposes around them or without."""
    x = placeholder(of([1, 20, 32]))
    t = p.transpose(x, (0, 2, 1)) if exchanged else p.exp(x)
    a, b = t.shape[2], 24
    hidden = p.maximum(p.contract(t, weights(a, b), "bcs,st->bct"), 0.0)
    y = p.contract(hidden, weights(b, a), "bct,ts->bcs")
    y = p.transpose(y, (0, 2, 1)) + x if exchanged else y + x
    return Graph((x,), (y,), ("x",), ("y",)), hidden


def test_keys_may_lie_by_columns() -> None:
    graph, k = scores()
    assert turnable(graph) == {k, k.node.inputs[0]}
    assert layouts(graph)[k] == (row_major(3), turned(3))


def test_what_transposes_surround_may_lie_by_columns() -> None:
    graph, hidden = mixer(exchanged=True)
    assert turnable(graph) == {hidden, hidden.node.inputs[0]}
    assert not turnable(mixer(exchanged=False)[0])


def test_rows_that_a_reduction_reads_stay_rows() -> None:
    x = placeholder(of([1, 20, 32]))
    t = p.contract(p.transpose(x, (0, 2, 1)), weights(20, 24), "bcs,st->bct")
    e = p.exp(t - p.reduce_max(t, (2,)))
    y = p.transpose(p.contract(e, weights(24, 20), "bct,ts->bcs"), (0, 2, 1))
    assert not turnable(Graph((x,), (y,), ("x",), ("y",)))


@pytest.mark.parametrize("graph", [scores()[0], mixer(True)[0]])
def test_every_pair_of_layouts_has_candidates_and_at_most_two_a_value(graph: Graph) -> None:
    cpu = Cpu(graph)
    assert max(len(v) for v in Cpu(graph, without=("columns",)).layouts.values()) == 1
    assert max(len(v) for v in cpu.layouts.values()) == 2
    regions = identify(graph, cpu.limits, cpu.admissible)
    needed, given_ = set(), set()
    for c in (c for r in regions for c in cpu.implementations(r)):
        tokens = (*c.needs, *c.gives)
        assert len({t.layout for t in tokens if t.value in turnable(graph)}) <= 1 or any(
            n.prim == "contract" for n in c.region.nodes
        )
        needed |= {t for t in c.needs if t.value in turnable(graph)}
        given_ |= {t for t in c.gives if t.value in turnable(graph)}
    assert needed == given_ and {t.layout for t in needed} == {row_major(3), turned(3)}


@pytest.mark.parametrize("need", [row_major(3), turned(3)])
@pytest.mark.parametrize("give", [row_major(3), turned(3)])
@pytest.mark.parametrize("spec", ["bmk,bnk->bmn", "bmk,bkn->bmn", "bkm,bkn->bmn"])
def test_products(need: Layout, give: Layout, spec: str) -> None:
    left, right, _ = spec.replace("->", ",").split(",")
    extent = {"b": 2, "m": 37, "n": 48, "k": 29}
    for constant in (False, True):
        a = placeholder(of([extent[x] for x in left]))
        shape = [extent[x] for x in right]
        b = weights(*shape) if constant else placeholder(of(shape))
        y = p.maximum(p.contract(a, b, spec), 0.0)
        candidate = candidate_of((y,), {a: need, b: need, y: give})
        kernel = contractions.lower(candidate, this_machine())
        assert kernel, kernel
        inputs = [noise(*v.shape, seed=k) for k, v in enumerate(candidate.region.tensors)]
        (got,) = run_kernel(candidate, kernel, inputs)
        np.testing.assert_allclose(got, expected(candidate, inputs)[0], rtol=1e-4, atol=1e-4)
