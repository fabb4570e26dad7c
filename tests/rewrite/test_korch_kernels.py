"""Korch's case studies (section 6.4): which kernels the program chooses, by a table of measured
prices that is part of the repository."""

from __future__ import annotations

from collections import Counter

import pytest

from rewrite.korch_cases import TABLE, case, chosen, price, table, woven

pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="no prices were measured")


def executed(name: str) -> Counter:
    return Counter(n for c in chosen(name) for n in c.region.nodes)


@pytest.mark.parametrize("name", ["case_evit_mla_sum", "case_candy_in_relu_pad"])
def test_the_table_knows_most_kernels(name):
    known = [c for c in woven(name).candidates if not c.is_alias]
    share = sum(price(name, c).source == "measured" for c in known) / len(known)
    assert share > 0.95 and len(table(name)) > 50


def test_figure_8_what_moves_elements_is_executed_again():
    """Reshape, transpose and slice stand in several kernels rather than in one of their own."""
    again = [n for n, count in executed("case_evit_mla_sum").items() if count > 1]
    assert {n.prim for n in again} & {"reshape", "transpose", "slice", "concat"}


def test_figure_8_fewer_kernels_than_operators():
    kernels = len(chosen("case_evit_mla_sum"))
    assert kernels < 12


def test_figure_12_an_instance_normalisation_is_split_over_kernels():
    """Its statistics in one, its map with Relu and the padding in another."""
    kernels = chosen("case_candy_in_relu_pad")
    prims = [{n.prim for n in c.region.nodes} for c in kernels]
    assert any("reduce_mean" in p and "pad" not in p for p in prims)
    assert any({"max", "pad"} <= p for p in prims)


@pytest.mark.parametrize("family", ["rows", "mlp"])
def test_figures_11_and_13_one_sample_and_sixteen_choose_different_kernels(family):
    one, many = (
        sorted(tuple(n.prim for n in c.region.nodes) for c in chosen(f"{family}{batch}"))
        for batch in (1, 16)
    )
    assert [n.prim for n in case(f"{family}1").primitives] == [
        n.prim for n in case(f"{family}16").primitives
    ]
    assert one != many
