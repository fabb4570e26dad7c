"""Compile, verify and time every network at one thread; write `docs/status.md`.

    python benchmarks/status.py [NAME ...] [--tune SECONDS] [--work FOLDER]

Each network leaves FOLDER/NAME.json; the table is made of all that are there, so that a part may be
run again alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from compare import feeds, interleave, onnxruntime_session, where
from networks import NAMES, REAL, network, real

import fissile
from fissile.verify import relative_error

HEAD = """# Status

Every network compiled whole, unpartitioned, both layouts and adapters included, regions of up to 8
primitives, f32, batch 1, 1 thread, `--tune {tune}`. Latency: {where}. Times on a shared machine
drift; a ratio is the median over interleaved rounds of ONNX Runtime's time over ours in that round
(above 1: ours is faster), with quartiles. Errors are the largest over the verification inputs,
relative to the output's scale, against float64. Weights are random where the network is not a real
one. Written by `python benchmarks/status.py`.

"""
COLUMNS = (
    "network | primitives | regions | candidates | solver s | gap % | kernels | adapters | "
    "error | ONNX Runtime's error | ms | ONNX Runtime ms | ratio | quartiles | "
    "sum of costs ms | compile s"
)


def run(name: str, tune: float, work: Path) -> None:
    """One network: FOLDER/NAME.json."""
    if name in REAL:
        path, shapes = real(name, work / "real"), REAL[name]["shapes"]
    else:
        path, shapes = work / f"{name}.onnx", None
        path.write_bytes(network(name).SerializeToString())
    exe = fissile.compile(path, shapes=shapes, threads=1, tune=tune)
    facts, report = exe.manifest.facts["selection"], exe.stages.values["verify"]
    inputs = feeds(exe.inputs)
    session = onnxruntime_session(path, 1)
    given = dict(zip([t.name for t in exe.inputs], inputs, strict=True))
    both = {"ours": lambda: exe(*inputs), "theirs": lambda: session.run(None, given)}
    got, want = exe(*inputs), session.run([t.name for t in exe.outputs], given)
    pairs = zip(got if isinstance(got, tuple) else (got,), want, strict=True)
    apart = max(relative_error(np.asarray(a), np.asarray(b)) for a, b in pairs)
    compared = interleave(both, 6.0)
    row = {
        **facts, "name": name, "tune": tune, "where": where(),
        "error": report.error, "apart": apart, "yardstick": report.yardstick,
        "ms": compared.ms["ours"], "peer_ms": compared.ms["theirs"],
        "ratio": compared.ratio["theirs"],
        "low": compared.low["theirs"], "high": compared.high["theirs"],
    }  # fmt: skip
    (work / f"{name}.json").write_text(json.dumps(row, indent=1))


def table(work: Path) -> str:
    rows = [
        json.loads((work / f"{n}.json").read_text())
        for n in (*NAMES, *REAL)
        if (work / f"{n}.json").exists()
    ]
    lines = [f"| {COLUMNS} |", "|" + "---|" * len(COLUMNS.split("|"))]
    for r in rows:
        cells = [
            r["name"], r["primitives"], r["regions"], r["candidates"],
            f"{r['solver_seconds']:.1f}", f"{100 * r['gap']:.4f}", r["kernels"], r["adapters"],
            f"{r['error']:.1e}", f"{r['yardstick']:.1e}", f"{r['ms']:.2f}", f"{r['peer_ms']:.2f}",
            f"{r['ratio']:.2f}", f"{r['low']:.2f} to {r['high']:.2f}",
            f"{r['us'] / 1e3:.2f}", f"{sum(r['seconds'].values()):.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    ratios = [r["ratio"] for r in rows]
    mean = float(np.exp(np.mean(np.log(ratios)))) if rows else 0.0
    head = (
        HEAD.format(tune=f"{rows[0]['tune']:g}", where=rows[0]["where"]) if rows else "# Status\n"
    )
    return head + "\n".join(lines) + f"\n\nGeometric mean of the ratios: {mean:.2f}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tune", type=float, default=120.0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fissile-status")
    parser.add_argument("--one", action="store_true", help="in this process")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.names or (*NAMES, *REAL):
        if args.one:
            run(name, args.tune, args.work)
            continue
        # a process each: nothing of one network lingers in the next one's memory or caches
        command = [
            sys.executable,
            __file__,
            name,
            "--one",
            "--tune",
            str(args.tune),
            "--work",
            str(args.work),
        ]
        status = subprocess.run(command).returncode
        print(f"{name}: {'done' if status == 0 else f'failed with status {status}'}", flush=True)
    if not args.one:
        target = Path(__file__).parent.parent / "docs" / "status.md"
        target.write_text(table(args.work))
        print(target)


if __name__ == "__main__":
    main()
