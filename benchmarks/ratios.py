"""How far the cost model is from the truth, by sort of kernel, for `src/fissile/cost/ratios.json`.

    python benchmarks/ratios.py [NAME ...] [--each N] [--store FILE] [--print]

From every network at most N kernels of each finest sort are measured, spread over their sizes; what
is in the store is taken too. `--print` shows the error of the model without the networks' own
measurements: raw, with the ratios of all other networks, and with half of its own as well.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from networks import NAMES, REAL, network, real

from fissile.compile import offer
from fissile.cost.calibrate import Calibration
from fissile.cost.defaults import TABLE, table
from fissile.cost.measure import measure
from fissile.cost.model import Model, Seen
from fissile.cost.store import Store, home
from fissile.kernels.candidate import Candidate
from fissile.onnx.load import load
from fissile.targets.cpu.calibrate import calibrate
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.target import VERSION
from fissile.targets.cpu.toolchain import find

Observed = list[tuple[tuple[str, ...], float]]  # chain of sorts, log(measured / modelled)


def observations(name: str, each: int, store: Path, work: Path) -> tuple[Observed, Calibration]:
    is_real = name in REAL
    graph = load(real(name, work), REAL[name]["shapes"]) if is_real else load(network(name))
    (cpu, woven), toolchain = offer(graph, threads=1), find()
    machine = calibrate(toolchain, 1)
    model, bench = Model(machine, cpu.efficiency), CpuBench(toolchain, 1, version=VERSION)
    distinct = {c.key: c for c in woven.candidates if not c.is_alias}
    sample = _sample(distinct.values(), model, each)
    known = Store(store, bench.place)
    times = known.get(distinct)
    kernels = [(c.key, k) for c in sample if c.key not in times and (k := cpu.kernel(c))]
    times.update(measure(kernels, bench, known))
    print(f"{name}: {len(times)} of {len(distinct)} kernels", flush=True)
    found: Observed = []
    for key, t in times.items():
        c = distinct[key]
        if t.us:
            found.append((model.sorts_of(c), math.log(max(t.us, 1e-3) / model.raw_us(c))))
    return found, machine


def _sample(candidates: Iterable[Candidate], model: Model, each: int) -> list[Candidate]:
    """At most `each` of every finest sort, the ends of its sizes first."""
    by_sort: dict[str, list[Candidate]] = {}
    for c in candidates:
        by_sort.setdefault(model.sorts_of(c)[-1], []).append(c)
    found: list[Candidate] = []
    for some in by_sort.values():
        some.sort(key=model.raw_us)
        count = min(each, len(some))
        found += [some[i * (len(some) - 1) // max(count - 1, 1)] for i in range(count)]
    return found


def seen(observed: Iterable[Observed]) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for some in observed:
        for chain, log_ratio in some:
            for sort in chain:
                found.setdefault(sort, Seen()).add(max(-4.0, min(4.0, log_ratio)))
    return found


def report(name: str, found: dict[str, Observed], machine: Calibration) -> None:
    """The model's error on a network: root mean square of log(measured / modelled)."""
    mine, others = found[name], [o for n, o in found.items() if n != name]
    model = Model(machine, defaults=seen(others))
    raw = [r for _, r in mine]
    cold = [r - model.log_ratio(chain)[0] for chain, r in mine]
    learned = Model(machine, defaults=model.defaults, seen=seen([mine[::2]]))
    warm = [r - learned.log_ratio(chain)[0] for chain, r in mine[1::2]]
    errors = " ".join(f"{math.sqrt(sum(e * e for e in x) / len(x)):.2f}" for x in (raw, cold, warm))
    print(f"{name:24} n {len(mine):5} raw, others', half of its own: {errors}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--store", type=Path, default=home() / "times.sqlite")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fissile-real")
    parser.add_argument("--print", action="store_true")
    args = parser.parse_args(arguments)
    found: dict[str, Observed] = {}
    for name in args.names or (*NAMES, *REAL):
        found[name], machine = observations(name, args.each, args.store, args.work)
        TABLE.write_text(table(seen(found.values()), machine.where))
    if args.print:
        for name in found:
            report(name, found, machine)


if __name__ == "__main__":
    main()
