"""Who came second: the cheapest other candidate for the same region and tokens."""

from __future__ import annotations

from fissile.cost.model import Cost
from fissile.ir import prims as p
from fissile.ir.graph import placeholder
from fissile.ir.layout import Token, row_major
from fissile.ir.types import of
from fissile.kernels.candidate import EMPTY, Candidate
from fissile.kernels.region import Region
from fissile.select.rivals import runners_up


def test_the_next_best_of_the_same_region_and_tokens() -> None:
    x = placeholder(of([4, 5]))
    y = p.exp(x)
    z = p.maximum(y, 0.0)
    a, b, c = (Token(v, row_major(2)) for v in (x, y, z))
    turned = Token(y, type(row_major(2))((1, 0)))

    def of_y(impl: str, gives: Token = b) -> Candidate:
        return Candidate(Region((y.node,), (y,)), impl, (), (a,), (gives,))

    candidates = [
        of_y("first"), of_y("dear"), of_y("guess"), of_y("elsewhere", turned),
        Candidate(Region((z.node,), (z,)), "alone", (), (b,), (c,)),
        Candidate(EMPTY, "adapter", (), (b,), (turned,)),
    ]  # fmt: skip
    costs = [Cost(us, s) for us, s in zip(
        (3.0, 9.0, 4.0, 1.0, 2.0, 1.0), ("measured", "measured", "model", *["measured"] * 3),
        strict=True,
    )]  # fmt: skip
    second = runners_up(candidates, costs, [0, 1, 4, 5])
    assert second[0] == (candidates[1], costs[1])  # measured, though a guess is lower
    assert second[1] == (candidates[0], costs[0])
    assert second[2:] == (None, None)
