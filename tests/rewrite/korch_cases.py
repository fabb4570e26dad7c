"""The subgraphs of Korch's case studies (section 6.4), and what measured kernels cost in them.

    python tests/rewrite/korch_prices.py        measures them anew on this machine

Prices are looked up by what a kernel is in words, not by its key, which changes with every
primitive's text: so no timing decides a test, and a table is of use for long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from networks import network

from fissile.compile import offer
from fissile.cost.model import Cost
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import constant, contract, erf, reduce_mean, rsqrt
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate
from fissile.onnx.load import load
from fissile.select.pricing import Market
from fissile.select.weave import Woven

TABLE = Path(__file__).with_name("korch_prices.json")
GAP = 1e-4


def mlp(batch: int) -> Graph:
    """A normalisation, a linear map, a Gelu, a linear map and the sum with what came in, of `batch`
    rows: memory-bound for one, and not for many."""
    x = placeholder(of((batch, 256)))
    c = x - reduce_mean(x, 1)
    n = c * rsqrt(reduce_mean(c * c, 1) + 1e-5)
    w, v = (constant(_numbers(shape)) for shape in ((256, 1024), (1024, 256)))
    h = contract(n, w, "nk,km->nm")
    y = contract(h * 0.5 * (erf(h * 0.70710678) + 1.0), v, "nk,km->nm") + x
    return _graph(y)


def rows(batch: int) -> Graph:
    """Two softmaxes of one value after another, as memory-bound as Segformer's subgraph in figure
    11: with few rows all of it fits one kernel."""
    x = placeholder(of((batch, 64, 64, 32)))
    c = x - reduce_mean(x, (1, 2))
    n = c * rsqrt(reduce_mean(c * c, (1, 2)) + 1e-5)
    m = n - reduce_mean(n, 3)
    return _graph(m * rsqrt(reduce_mean(m * m, 3) + 1e-5) + x)


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _graph(y: Value) -> Graph:
    inputs = tuple(n.value for n in Graph((), (y,), (), ()).nodes if n.prim == "input")
    return Graph(inputs, (y,), tuple(f"x{i}" for i in range(len(inputs))), ("y",))


@cache
def case(name: str) -> Graph:
    if name.startswith("mlp"):
        return mlp(int(name[3:]))
    if name.startswith("rows"):
        return rows(int(name[4:]))
    return load(network(name))


CASES = ("case_evit_mla_sum", "case_candy_in_relu_pad", "rows1", "rows16", "mlp1", "mlp16")


@cache
def woven(name: str) -> Woven:
    return offer(case(name), 1)[1]


def words(c: Candidate) -> str:
    """What a kernel is: its primitives, types, layouts and parameters."""
    body = " ".join(f"{n.prim}{sorted(n.attrs.items(), key=str)}{n.types}" for n in c.region.nodes)
    tokens = " ".join(f"{t.value.type}@{t.layout!r}" for t in (*c.needs, *c.gives))
    wiring = [[n.inputs.index(v) for v in n.inputs] for n in c.region.nodes]
    text = f"{c.impl} {c.params} {body} {wiring} {tokens} {c.region.signature}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def table(name: str) -> Mapping[str, float]:
    return json.loads(TABLE.read_text())["us"][name]


def price(name: str, c: Candidate) -> Cost:
    if c.is_alias:
        return Cost(1e-3, "model")
    us = table(name).get(words(c))
    return Cost(us, "measured") if us is not None else Cost(1e6, "model")


def chosen(name: str) -> list[Candidate]:
    """The program's answer by the table."""
    w = woven(name)
    market = Market(w.computation, w.candidates)
    solved = market.solve([price(name, c) for c in w.candidates], GAP, 60.0)
    return [w.candidates[k] for k in solved.chosen if not w.candidates[k].is_alias]
