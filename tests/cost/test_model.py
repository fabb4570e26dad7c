"""The roofline bound in closed form, and a model that never promises more than it."""

from __future__ import annotations

import pytest

from fissile.cost.calibrate import Calibration, Rate
from fissile.cost.model import Model, bound_us, moved_bytes
from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Token, row_major
from fissile.ir.types import I64, of
from fissile.kernels.candidate import Candidate
from fissile.kernels.region import Region

# 100 GFLOP/s, 50 GB/s at any size, 2 us a launch
MACHINE = Calibration("here", 1, 100.0, (Rate(1 << 30, 50.0),), 2.0, 1 << 15, 1 << 20, 1 << 25)


def candidate(*values: Value, impl: str = "contraction") -> Candidate:
    region = Region(tuple(v.node for v in values), values[-1:])
    needs = tuple(Token(v, row_major(v.rank)) for v in region.tensors)
    return Candidate(region, impl, (), needs, (Token(values[-1], row_major(values[-1].rank)),))


def test_arithmetic_bounds_a_large_product() -> None:
    x, w = placeholder(of([500, 1000])), placeholder(of([1000, 2000]))
    c = candidate(p.contract(x, w, "mk,kn->mn"))
    assert moved_bytes(c) == 4 * (500 * 1000 + 1000 * 2000 + 500 * 2000)
    assert bound_us(c, MACHINE) == pytest.approx(2 * 500 * 1000 * 2000 / 100e3 + 2)


def test_memory_bounds_a_sum() -> None:
    x, z = placeholder(of([1000, 1000])), placeholder(of([1000, 1000]))
    assert bound_us(candidate(x + z, impl="map"), MACHINE) == pytest.approx(12e6 / 50e3 + 2)


def test_parts_of_a_table_are_not_the_table() -> None:
    table, ids = placeholder(of([30000, 100])), placeholder(of([7], I64))
    assert moved_bytes(candidate(p.gather(table, ids), impl="map")) == 7 * 8 + 2 * 7 * 100 * 4
    part = p.slice_(table, (5, 0), (10, 100))
    assert moved_bytes(candidate(part, impl="map")) == 2 * 10 * 100 * 4


def test_the_model_never_promises_more_than_the_bound() -> None:
    model = Model(MACHINE)
    pairs = [(placeholder(of([64, k])), placeholder(of([k, 64]))) for k in (100, 200, 300, 400)]
    every = [candidate(p.contract(x, w, "mk,kn->mn")) for x, w in pairs]
    model.learn((c, 1e-3) for c in every[:3])
    assert model.us(every[3]) == bound_us(every[3], MACHINE)
