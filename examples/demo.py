"""Compile MobileNetV2 for this machine and compare it with ONNX Runtime.

python examples/demo.py [NETWORK] [--tune SECONDS]        NETWORK: a name from benchmarks/models
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from networks import WHOLE, network

import fissile
from fissile.bench import interleaved, ours, random_feeds
from fissile.console import progress
from fissile.peers import peer


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", nargs="?", default="mobilenetv2_100", choices=WHOLE)
    parser.add_argument("--tune", type=float, default=60.0, help="seconds of measuring kernels")
    args = parser.parse_args(arguments)
    model = network(args.network)
    with progress() as display:
        exe = fissile.compile(model, threads=1, tune=args.tune, progress=display)
    facts = exe.manifest.facts["selection"]
    print(f"{args.network}: {len(model.graph.node)} ONNX nodes, {facts['primitives']} primitives")
    print(f"regions        {facts['regions']}")
    print(f"candidates     {facts['candidates']}, {facts['measured']} kernels measured")
    print(
        f"chosen         {facts['kernels']} kernels ({facts['adapters']} adapters), "
        f"{facts['aliases']} aliases"
    )
    print(
        f"solver         {facts['columns']} columns, {facts['solver_seconds']:.2f} s, "
        f"gap {facts['gap']:.4%}"
    )
    kinds = Counter(c.impl for c in exe.selection.chosen)
    print("by kind        " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    costly = sorted(
        zip(exe.selection.costs, exe.selection.chosen, strict=True), key=lambda t: -t[0].us
    )
    for cost, candidate in costly[:5]:
        prims = " ".join(n.prim for n in candidate.region.nodes)
        print(f"  {cost.us:8.1f} us  {candidate.impl:12s} {prims}")
    print(f"largest error  {exe.stages.values['verify']}")
    feeds = random_feeds(exe.inputs)
    engines = {
        "fissile": ours(exe, feeds),
        "ONNX Runtime": peer("onnxruntime", model.SerializeToString(), feeds, 1),
    }
    print("latency        1 thread, interleaved")
    for name, t in interleaved(engines, 5.0).items():
        print(
            f"  {name:13s} {t.median_us / 1e3:8.2f} ms median, {t.least_us / 1e3:.2f} least, "
            f"{t.ratio:.2f} of ours ({t.low:.2f} to {t.high:.2f})"
        )
    print(f"program        sum of the chosen kernels' costs {facts['us'] / 1e3:.2f} ms")


if __name__ == "__main__":
    main()
