"""The roofline bound in closed form, and a model that never promises more than it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fissile.cost.calibrate import Calibration, Rate
from fissile.cost.defaults import defaults, table
from fissile.cost.model import TRUST, Cost, Model, Seen, bound_us, moved_bytes
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


def product(k: int) -> Candidate:
    return candidate(p.contract(placeholder(of([64, k])), placeholder(of([k, 64])), "mk,kn->mn"))


def test_ratios_shrink_towards_the_coarser_sort() -> None:
    """n observations of mean m against TRUST of the coarser sort's, along a chain of one sort each:
    in closed form, with nothing known above."""
    model, measured = Model(MACHINE), [product(k) for k in (100, 101, 102)]
    model.learn((c, model.raw_us(c) * 4.0) for c in measured)
    chain, log_ratio = model.sorts_of(measured[0]), 0.0
    for _ in chain:
        log_ratio = (3 * math.log(4.0) + TRUST * log_ratio) / (3 + TRUST)
    assert model.log_ratio(chain)[0] == pytest.approx(log_ratio)
    assert model.us(measured[0]) == pytest.approx(model.raw_us(measured[0]) * math.exp(log_ratio))


def test_much_that_agrees_is_believed_and_leaves_little_doubt() -> None:
    model, measured = Model(MACHINE), [product(k) for k in range(100, 160)]
    model.learn((c, model.raw_us(c) * 2.0) for c in measured)
    log_ratio, deviation = model.log_ratio(model.sorts_of(measured[0]))
    assert log_ratio == pytest.approx(math.log(2.0), rel=0.01) and deviation < 0.1
    few = Model(MACHINE)
    few.learn((c, few.raw_us(c) * 2.0) for c in measured[:1])
    assert few.log_ratio(few.sorts_of(measured[0]))[1] > deviation


def test_what_was_seen_elsewhere_counts_until_it_is_seen_here() -> None:
    elsewhere = Model(MACHINE)
    measured = [product(k) for k in range(100, 160)]
    elsewhere.learn((c, elsewhere.raw_us(c) * 3.0) for c in measured)
    model = Model(MACHINE, defaults=elsewhere.seen)
    assert model.us(measured[0]) > 2 * model.raw_us(measured[0])
    model.learn((c, model.raw_us(c)) for c in measured)
    assert model.us(measured[0]) == pytest.approx(model.raw_us(measured[0]), rel=0.1)


def test_a_better_kernel_than_its_sort_costs_less_and_no_less_than_the_bound() -> None:
    model, c = Model(MACHINE), product(4000)
    assert bound_us(c, MACHINE) <= model.us(c, -1.0) < model.us(c) < model.us(c, 1.0)
    assert model.us(c, -100.0) == bound_us(c, MACHINE)


def test_the_table_says_what_was_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = Seen()
    for x in (0.5, 1.0, 1.5, 2.0):
        seen.add(x)
    monkeypatch.setattr("fissile.cost.defaults.TABLE", tmp_path / "ratios.json")
    (tmp_path / "ratios.json").write_text(table({"often": seen, "once": Seen(1, 1.0, 1.0)}, "me"))
    defaults.cache_clear()
    try:
        (found,) = defaults().items()
    finally:
        defaults.cache_clear()
    assert found[0] == "often" and found[1].count == 4
    assert found[1].total == pytest.approx(5.0, abs=0.01)
    assert found[1].squares == pytest.approx(0.25 + 1 + 2.25 + 4, abs=0.02)


def test_a_slice_of_a_computed_value_reads_a_part() -> None:
    """The first 10 of 1000 rows of x + z: 10 rows of each are read, and 10 written."""
    x, z = placeholder(of([1000, 100])), placeholder(of([1000, 100]))
    total = x + z
    part = p.slice_(total, (0, 0), (10, 100))
    region = Region((total.node, part.node), (part,))
    needs = tuple(Token(v, row_major(2)) for v in region.tensors)
    c = Candidate(region, "map", (), needs, (Token(part, row_major(2)),))
    assert moved_bytes(c) == 3 * 10 * 100 * 4


def test_a_kernel_that_gives_more_errs_as_the_one_that_it_extends() -> None:
    plain = product(300)
    more = replace(plain, impl="measured", params=(("by", "contraction"),))
    model = Model(MACHINE, {"contraction": 0.5})
    assert model.us(more) == model.us(plain)
    model.learn([(plain, 3 * model.raw_us(plain))] * 20)
    assert model.us(more) == model.us(plain) == pytest.approx(3 * model.raw_us(plain), rel=0.1)


@pytest.mark.parametrize("below", [0.5, 0.9, 1.0, 1.3])
@pytest.mark.parametrize("least", [0.0, 0.7])
def test_expected_gain_is_the_mean_over_draws(below, least):
    """max(below - time, 0) over two million times whose logarithm is normal, none below `least`."""
    draws = np.random.default_rng(0).standard_normal(2_000_000)
    times = np.maximum(np.exp(0.4 * draws), least)
    cost = Cost(1.0, "model", expected_us=1.0, deviation=0.4, least_us=least)
    assert cost.gain_us(below) == pytest.approx(np.maximum(below - times, 0).mean(), abs=5e-4)


def test_what_is_known_gains_nothing():
    assert Cost(1.0, "measured").gain_us(2.0) == 0.0
