"""The binary program on whole networks: seconds and proven gap, and what each family of rows is
worth.

    python benchmarks/solver.py [NAME ...] [--limit SECONDS] [--ablate SECONDS]

Costs are what the store knows, else the model's: nothing is measured. Writes `docs/solver.md`. One
core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from networks import NAMES, REAL, network, real

from fissile.compile import offer
from fissile.cost.defaults import defaults
from fissile.cost.model import Cost, Model, prices
from fissile.cost.store import Store, home
from fissile.onnx.load import load
from fissile.select.limits import limits
from fissile.select.pricing import Market
from fissile.select.program import ALL_ROWS, KORCH, SECTION_9
from fissile.select.solve import Selected, select
from fissile.select.tokens import problem
from fissile.targets.cpu.calibrate import calibrate
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.target import VERSION
from fissile.targets.cpu.toolchain import find

GAP = 1e-4
FAMILIES = {
    "Korch's rows": KORCH,
    "+ cover": KORCH | {"cover"},
    "+ edges": KORCH | {"cover", "edges"},
    "+ adapters": SECTION_9,
    "+ layouts, first": ALL_ROWS,
}
HEAD = """# The binary program

Whole networks, unpartitioned, recomputation allowed, all regions and implementations that `compile`
offers, both layouts, adapters and limits of memory; one core; HiGHS through `select/`. Seconds are
of the processor. `solve` is what `compile` runs (presolve, landmark cuts, ceilings) asked for a gap
of 0.01 % within {limit:g} s. The other columns give the rows to HiGHS as they are, with no presolve
and no cuts of ours, for at most {ablate:g} s of the solver's own count of its work: seconds, and
the gap where it was not closed; an empty cell was not tried. Written by `python
benchmarks/solver.py`.

"""


def instance(name: str, work: Path) -> tuple[Market, list[Cost]]:
    shapes = None
    if name in REAL:
        path, shapes = real(name, work / "real"), REAL[name]["shapes"]
        graph = load(path, shapes)
    else:
        graph = load(network(name))
    (cpu, woven), toolchain = offer(graph, threads=1), find()
    candidates = woven.candidates
    store = Store(home() / "times.sqlite", CpuBench(toolchain, 1, version=VERSION).place)
    known = {k: t.us for k, t in store.get({c.key for c in candidates}).items() if t.us is not None}
    model = Model(calibrate(toolchain, 1), cpu.efficiency, defaults())
    distinct = {c.key: c for c in candidates if c.key in known}
    model.learn((c, known[k]) for k, c in distinct.items())
    market = Market(woven.computation, candidates, limits=limits(woven.base, candidates))
    return market, prices(candidates, model, known)


def solve(name: str, work: Path, limit: float, ablate: float) -> None:
    market, costs = instance(name, work)
    candidates, us = market.candidates, [c.us for c in costs]
    row = {"name": name, "primitives": len(market.graph.primitives), "columns": len(candidates)}
    row["solve"] = timed(lambda: market.solve(costs, GAP, limit).selected)
    if ablate:
        program = problem(market.graph, candidates, us, market.uses, len(market.limits))
        plain = partial(select, program, time_limit=ablate, gap=GAP, presolve=False)
        for label, families in FAMILIES.items():
            row[label] = timed(partial(plain, families=frozenset(families)))
    (work / f"{name}.solver.json").write_text(json.dumps(row))
    print(row, flush=True)


def timed(run: Callable[[], Selected]) -> list[Any]:
    """Seconds of the processor, gap and status."""
    begin = time.process_time()
    s = run()
    return [time.process_time() - begin, s.gap, s.status]


def shown(cell: list | None) -> str:
    """Seconds, and the gap where it is more than was asked for."""
    if cell is None:
        return ""
    seconds, gap, _ = cell
    closed = gap <= 1.001 * GAP
    return f"{seconds:.1f} s" if closed else f"{seconds:.0f} s, gap {100 * gap:.2f} %"


def table(work: Path, limit: float, ablate: float) -> str:
    found = [work / f"{n}.solver.json" for n in (*NAMES, *REAL)]
    rows = [json.loads(p.read_text()) for p in found if p.exists()]
    labels = ["solve", *FAMILIES]
    lines = [
        "| network | primitives | candidates | gap % | " + " | ".join(labels) + " |",
        "|---" * (4 + len(labels)) + "|",
    ]
    for r in rows:
        gap = f"{100 * r['solve'][1]:.4f}"
        cells = " | ".join(shown(r.get(label)) for label in labels)
        lines.append(f"| {r['name']} | {r['primitives']} | {r['columns']} | {gap} | {cells} |")
    return HEAD.format(limit=limit, ablate=ablate) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--ablate", type=float, default=60.0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fissile-status")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.names or (*NAMES, *REAL):
        solve(name, args.work, args.limit, args.ablate)
    (Path(__file__).parent.parent / "docs" / "solver.md").write_text(
        table(args.work, args.limit, args.ablate)
    )


if __name__ == "__main__":
    main()
