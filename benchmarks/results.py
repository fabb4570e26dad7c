"""Measure everything and write `RESULTS.md`.

    python benchmarks/results.py [PART ...] [--only NAME ...] [--tune SECONDS] [--again]
    python benchmarks/results.py table

Parts: latency (threads 1 and 2, batch 1), batch (batch 8), fast (`--accuracy fast`), memory,
neighbours, costs, tuning, untuned, ablation, kernels, savings, exported (`fission --optimize` in
other runtimes), joint; without a name, all of them. Every
row is measured by a process of its own and saved below `OUT/results`; a row that is there, of the
same sources and settings, is not measured again, so that a run that was stopped goes on where it
was. `RESULTS.md` is written anew after every part from the rows that are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from networks import NAMES, REAL, WHOLE
from parts import PARTS, Case, Place, source_digest
from tables import written

import fissile
from fissile.cost.store import home
from fissile.doctor import examine

HERE = Path(__file__).parent
PACKAGE = Path(fissile.__file__).parent
EVERY = (*WHOLE, *(n for n in NAMES if n not in WHOLE), *REAL)
THREADS = (1, 2)
BATCH = 8


def cases(part: str, tune: float, seconds: float) -> Iterator[Case]:
    """What a part measures, the quick networks of a kind together with the slow ones."""
    common = {"tune": tune, "seconds": seconds}
    if part in ("latency", "neighbours", "costs"):
        names = EVERY if part == "latency" else WHOLE
        yield from (Case(n, t, **common) for t in THREADS for n in names)
    elif part == "batch":
        yield from (Case(n, t, BATCH, **common) for t in THREADS for n in WHOLE)
    elif part == "fast":
        yield from (Case(n, t, accuracy="fast", **common) for t in THREADS for n in WHOLE)
    elif part == "tuning":
        yield from (Case(n, **common) for n in WHOLE)
    else:
        names = EVERY if part in ("memory", "untuned") else WHOLE
        yield from (Case(n, **common) for n in names)


def origin() -> dict[str, Any]:
    """What a row was measured with."""
    facts = examine()
    versions = {k: v for k, v in facts["extras"].items() if v}
    return {
        "source": source_digest(PACKAGE),
        "commit": _git("describe", "--always", "--abbrev=10", "--dirty"),
        "date": time.strftime("%Y-%m-%d"),
        "processor": facts["processor"]["name"],
        "processors": facts["processor"]["threads"],
        "compiler": facts["compiler"]["version"],
        "python": sys.version.split()[0],
        "versions": {"fissile": facts["fissile"]["version"], **versions},
    }


def _git(*words: str) -> str:
    result = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def path_of(out: Path, part: str, case: Case) -> Path:
    return out / "results" / part / f"{case.label}.json"


def is_there(path: Path, case: Case, source: str) -> bool:
    """Measured with these sources and settings."""
    if not path.exists():
        return False
    row = json.loads(path.read_text())
    return row["at"]["source"] == source and row["case"] == asdict(case) and "fault" not in row


def measure(part: str, case: Case, work: Path, out: Path) -> None:
    """One row, in this process. A fault is a row too."""
    at = origin()
    begin = time.monotonic()
    row: dict[str, Any] = {"part": part, "case": asdict(case), "at": at}
    try:
        row["row"] = PARTS[part](Place(work, at["source"]), case)
    except Exception as error:
        traceback.print_exc()
        row["fault"] = f"{type(error).__name__}: {str(error)[:300]}"
    if source_digest(PACKAGE) != at["source"]:
        row["fault"] = "the sources changed while it ran"
    row["took_s"] = round(time.monotonic() - begin, 1)
    path = path_of(out, part, case)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=1) + "\n")


def run(part: str, todo: list[Case], args: argparse.Namespace) -> None:
    source = source_digest(PACKAGE)
    paths = {c: path_of(args.out, part, c) for c in todo}
    left = [c for c in todo if args.again or not is_there(paths[c], c, source)]
    print(f"{part}: {len(todo) - len(left)} of {len(todo)} rows are there", flush=True)
    begin = time.monotonic()
    for i, case in enumerate(left):
        words = ["--one", part, json.dumps(asdict(case)), "--work", str(args.work)]
        words += ["--out", str(args.out)]
        status = subprocess.run([sys.executable, __file__, *words]).returncode
        spent = time.monotonic() - begin
        minutes = spent / (i + 1) * (len(left) - i - 1) / 60
        end = _ending(paths[case], status)
        done = f"{len(todo) - len(left) + i + 1} of {len(todo)}"
        print(f"{part}: {case.label} {end}; {done}, about {minutes:.0f} min left", flush=True)
    write_table(args.out)


def _ending(path: Path, status: int) -> str:
    if status:
        return f"ended with status {status}"
    row = json.loads(path.read_text())
    return row.get("fault") or f"took {row['took_s']:.0f} s"


def write_table(out: Path) -> None:
    found = sorted((out / "results").glob("*/*.json"))
    rows = [json.loads(p.read_text()) for p in found]
    text = out / "RESULTS.md"
    text.write_text(written(rows, EVERY))
    print(f"{text}: {len(rows)} rows", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these networks")
    parser.add_argument("--tune", type=float, default=120.0, help="seconds for each compilation")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each interleaving")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--work", type=Path, default=home() / "benchmarks")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        part, case = args.one
        return measure(part, Case(**json.loads(case)), args.work, args.out)
    if unknown := set(args.parts) - {*PARTS, "table"}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    for part in args.parts or PARTS:
        if part == "table":
            write_table(args.out)
            continue
        todo = list(cases(part, args.tune, args.seconds))
        run(part, [c for c in todo if not args.only or c.name in args.only], args)


if __name__ == "__main__":
    main()
