"""What the selection chose for every step of a plan, and what came second, as JSON-ready facts."""

from __future__ import annotations

from typing import Any

from fissile.cost.model import Cost
from fissile.kernels.candidate import Candidate
from fissile.plan.plan import Launch, Plan
from fissile.select.tune import Selection


def choices(plan: Plan, selection: Selection) -> list[dict[str, Any] | None]:
    """One for each step, in order; None for a plain copy."""
    costs = dict(zip(selection.chosen, selection.costs, strict=True))
    rivals = dict(zip(selection.chosen, selection.rivals, strict=True))

    def choice(c: Candidate) -> dict[str, Any]:
        rival = rivals[c]
        return _price(c, costs[c]) | {"runner_up": _price(*rival) if rival else None}

    return [choice(s.candidate) if isinstance(s, Launch) else None for s in plan.steps]


def _price(c: Candidate, cost: Cost) -> dict[str, Any]:
    return {"impl": c.impl, "params": [[k, str(v)] for k, v in c.params], "key": c.key,
            "us": round(cost.us, 3), "source": cost.source}  # fmt: skip
