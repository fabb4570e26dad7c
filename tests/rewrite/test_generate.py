"""The search for equations: what it must find, what it must refuse, and that the table is its."""

from __future__ import annotations

import pytest

from fissile.rewrite.generate import holds, implied, price, proposals, search
from fissile.rewrite.pattern import parse
from fissile.rewrite.rules import RULES
from fissile.rewrite.rules.found import TABLE


def test_the_table_is_what_the_search_writes():
    lines = [s for s in TABLE.read_text().splitlines() if not s.startswith("#")]
    assert lines == [str(e) for e in search(lambda line: None)]


@pytest.mark.parametrize(
    "line",
    [
        "sqrt(mul(x, x)) = abs(x)",
        "reduce_max.a(tanh(x)) = tanh(reduce_max.a(x))",
        "add(contract.m(x, y), contract.m(x, z)) = contract.m(x, add(y, z))",
        "max(max(x, y), y) = max(x, y)",
    ],
)
def test_true_equations_hold(line):
    assert holds(parse(line))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mul(x, y) = add(x, y)", "false"),
        ("sqrt(mul(x, x)) = x", "negative numbers"),
        ("mul(0, x) = 0", "infinities"),
        ("min(max(x, y), x) = x", "NaN"),
        ("sub(add(x, y), y) = x", "zeros with a sign"),
        ("add(0, x) = x", "zeros with a sign"),
        ("div(x, sigmoid(x)) = add(div(x, exp(x)), x)", "overflow in f32"),
        ("div(div(x, y), z) = div(x, mul(y, z))", "products overflow"),
        ("reduce_max.a(neg(x)) = neg(reduce_max.a(x))", "not monotone"),
        ("contract.m(x, y) = contract.m(y, x)", "does not commute"),
    ],
)
def test_false_equations_do_not(line, why):
    assert not holds(parse(line)), why


def test_equations_by_hand_are_not_found_again():
    """Rules that we wrote imply what the search would propose."""
    known = [r for r in RULES.values() if r.source != "search"]
    for line in ("abs(exp(x)) = exp(x)", "neg(neg(x)) = x"):
        assert implied(parse(line), known), line
    assert not implied(parse("exp(softplus(x)) = add(1, exp(x))"), known)


def test_proposals_are_cheaper_on_the_right():
    said: list[str] = []
    found = proposals(2, said.append)
    assert said and all(price(e.right) < price(e.left) for e in found)
    assert "sub(x, neg(y)) = add(x, y)" in {str(e) for e in found}
