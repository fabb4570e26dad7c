"""Who came second where: what the selection did not choose, for people to look at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fissile.cost.model import Cost
from fissile.kernels.candidate import Candidate

Priced = tuple[Candidate, Cost]


def runners_up(
    candidates: Sequence[Candidate], costs: Sequence[Cost], chosen: Collection[int]
) -> tuple[Priced | None, ...]:
    """For each chosen index: the cheapest other that computes the same region from the same tokens;
    measured ones stand before those that only the model knows."""
    same: dict[object, list[int]] = {}
    for k, c in enumerate(candidates):
        if not c.is_adapter and not c.is_alias:
            same.setdefault((c.region.members, c.needs, c.gives), []).append(k)

    def second(k: int) -> Priced | None:
        c = candidates[k]
        others = [j for j in same.get((c.region.members, c.needs, c.gives), ()) if j != k]
        best = min(others, key=lambda j: (costs[j].source != "measured", costs[j].us), default=None)
        return None if best is None else (candidates[best], costs[best])

    return tuple(map(second, chosen))
