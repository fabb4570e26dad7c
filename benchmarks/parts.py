"""What is measured for `RESULTS.md`: each function gives one row, ready for JSON.

Latencies are ratios within one process, interleaved (`fissile.bench`). Compiled folders are kept
below a work folder and used again by every part while sources and settings are the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import costs as kernel_costs
import kernels as kernel_shapes
import numpy as np
import savings as saving_kernels
from batches import batched
from networks import REAL, network, real

import fissile
from fissile.artifact.manifest import Tensor
from fissile.artifact.write import write_pieces
from fissile.bench import Latency, interleaved, ours, random_feeds
from fissile.cost.store import Place as StorePlace
from fissile.cost.store import Store, home
from fissile.errors import FissileError
from fissile.onnx.load import load as load_graph
from fissile.onnx.save import save as save_graph
from fissile.peers import Call, peer
from fissile.rewrite.rules import RULES
from fissile.select.spellings import for_runtimes
from fissile.targets.cpu.implementations import IMPLEMENTATIONS
from fissile.verify import relative_error

PEERS = ("onnxruntime", "openvino")
SPINNERS = 2
ALONE_S, BESIDE_S, PHASES = 1.5, 2.5, 6  # alone, then beside neighbours, and again
TOGETHER = {  # implementations that are left out together; others alone
    "chains": ("chain", "attention"),
    "libraries": ("openblas", "onednn"),
    "winograd": ("winograd", "measured"),  # which may take its way too
    "measured": ("measured",),
}
PARTS_OF_THE_METHOD = (
    "rewrites", "fusion", "program", "recomputation", "channels-first", "channels-last",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One network as it is compiled. `tune`, `seconds`: of tuning, and of one interleaving."""

    name: str
    threads: int = 1
    batch: int = 1
    accuracy: str = "default"
    tune: float = 120.0
    seconds: float = 6.0

    @property
    def label(self) -> str:
        return f"{self.name}.t{self.threads}.b{self.batch}.{self.accuracy}"


@dataclass(frozen=True)
class Place:
    """`work`: models and compiled folders. `source`: a digest of the compiler's sources."""

    work: Path
    source: str

    def model(self, case: Case) -> Path:
        """The ONNX file of a case. Raises ValueError where the network has no such batch."""
        if case.name in REAL:
            return real(case.name, self.work / "real")
        path = self.work / "models" / f"{case.name}.b{case.batch}.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            proto = network(case.name)
            data = (batched(proto, case.batch) if case.batch > 1 else proto).SerializeToString()
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(data)
            part.replace(path)
        return path

    def compiled(self, case: Case) -> tuple[fissile.Executable, dict[str, Any]]:
        """The executable, and what was found out when it was compiled."""
        folder = self.work / "compiled" / case.label
        note = folder.with_name(f"{case.label}.json")
        key = [self.source, case.tune]
        if note.exists() and folder.exists():
            facts = json.loads(note.read_text())
            if facts["key"] == key:
                renew(folder / "weights.bin")
                return fissile.load(folder, threads=case.threads), facts
        folder.parent.mkdir(parents=True, exist_ok=True)
        exe = self.fresh(case, folder=folder)
        report = exe.stages.values["verify"]
        facts = {
            "key": key, "error": report.error, "yardstick": report.yardstick,
            "selection": _figures(exe), "memory": exe.manifest.memory,
            "weights_bytes": (folder / "weights.bin").stat().st_size,
            "model_bytes": self.model(case).stat().st_size,
        }  # fmt: skip
        note.write_text(json.dumps(facts, indent=1))
        return exe, facts

    def fresh(self, case: Case, **options: Any) -> fissile.Executable:
        """Compiled now. `options` go to `fissile.compile`."""
        settings = {"tune": case.tune, "threads": case.threads, "accuracy": case.accuracy}
        return fissile.compile(self.model(case), shapes=shapes(case), **(settings | options))


def renew(weights: Path) -> None:
    """A file of weights as it lies right after a compilation: what has been in the page cache for
    hours is mapped 5 to 10 % slower (MiniLM, EfficientViT)."""
    part = weights.with_suffix(".new")
    with part.open("wb", buffering=0) as file:
        write_pieces(file, [memoryview(weights.read_bytes())])
    part.replace(weights)


def shapes(case: Case) -> Mapping[str, Sequence[int]] | None:
    return REAL[case.name]["shapes"] if case.name in REAL else None


def _figures(exe: fissile.Executable) -> dict[str, Any]:
    """The figures of a compilation, without its list of choices."""
    facts = exe.manifest.facts["selection"]
    return {k: v for k, v in facts.items() if isinstance(v, int | float | str) or k == "seconds"}


def engines(exe: fissile.Executable, model: Path, threads: int) -> dict[str, Call]:
    """Ours first, then every peer that runs this model."""
    feeds = random_feeds(exe.inputs)
    found = {"fissile": ours(exe, feeds)}
    for name in PEERS:
        try:
            found[name] = peer(name, str(model), feeds, threads)
        except FissileError as fault:
            print(f"  {fault}", file=sys.stderr)
    return found


def _rows(times: Mapping[str, Latency]) -> dict[str, dict[str, float]]:
    return {name: asdict(t) for name, t in times.items()}


# ---------------------------------------------------------------- the parts


def latency(place: Place, case: Case) -> dict[str, Any]:
    """Interleaved with the peers; how far our outputs are from theirs."""
    exe, facts = place.compiled(case)
    calls = engines(exe, place.model(case), case.threads)
    expected = [np.array(a) for a in calls["fissile"]()]
    apart = {
        name: max(relative_error(np.asarray(a), e) for a, e in zip(call(), expected, strict=True))
        for name, call in calls.items()
    }
    return facts | {"engines": _rows(interleaved(calls, case.seconds)), "apart": apart}


def memory(place: Place, case: Case) -> dict[str, Any]:
    """Kilobytes that loading and running adds to a process that has imported all; each engine in a
    process of its own."""
    place.compiled(case)
    found = {n: _probed(place, case, n) for n in ("fissile", *PEERS)}
    return place.compiled(case)[1] | {"engines": {n: row for n, row in found.items() if row}}


def _probed(place: Place, case: Case, engine: str) -> dict[str, Any] | None:
    words = [str(place.work), place.source, engine, json.dumps(asdict(case))]
    code = "import sys, parts; parts.probe(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=Path(__file__).parent, capture_output=True,
        text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def probe(work: str, source: str, engine: str, case_text: str) -> None:
    """Run in its own process: print what it took, as JSON."""
    place, case = Place(Path(work), source), Case(**json.loads(case_text))
    folder, model = place.work / "compiled" / case.label, place.model(case)
    inputs = fissile.load(folder, threads=1).inputs
    feeds = random_feeds(inputs)
    if engine != "fissile":
        __import__(engine)
    with _grown() as kilobytes:
        if engine == "fissile":
            call = ours(fissile.load(folder, threads=case.threads), feeds)
        else:
            call = peer(engine, str(model), feeds, case.threads)
        for _ in range(3):
            call()
        kilobytes["mapped"] = _mapped_kb(folder / "weights.bin")
    print(json.dumps(kilobytes))


@contextmanager
def _grown():
    """{"peak", "resident"}: growth of this process over the body, in kB."""
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")  # the peak so far is forgotten
    before = _status_kb("VmRSS")
    found: dict[str, int] = {}
    yield found
    found["peak"] = _status_kb("VmHWM") - before
    found["resident"] = _status_kb("VmRSS") - before


def _status_kb(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _mapped_kb(path: Path) -> int:
    """Resident pages of a mapped file: clean, shared by processes, given back under pressure."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = words[-1] == str(path.resolve())
        elif inside and words[0] == "Rss:":
            total += int(words[1])
    return total


def neighbours(place: Place, case: Case) -> dict[str, Any]:
    """Alone, and beside processes that never stop: each engine's slow-down, and ours against
    theirs. Means, as a call is either set aside for milliseconds or not: a median would tell of
    the more frequent of the two. One engine at a time: in turns, Candy's slow-down was 1.7 where it
    is 1.45 alone, though on one processor shared with one spinner all engines are 2.0 to 2.05
    slower. `spread`: least and most slow-down of a pair of phases."""
    exe, _ = place.compiled(case)
    calls = engines(exe, place.model(case), case.threads)
    alone: dict[str, list[float]] = {n: [] for n in calls}
    beside: dict[str, list[float]] = {n: [] for n in calls}
    for _ in range(PHASES):
        for name, call in calls.items():
            alone[name].append(_mean_us(call, ALONE_S))
            with _spinning():
                beside[name].append(_mean_us(call, BESIDE_S))
    slower = {n: [b / a for a, b in zip(alone[n], beside[n], strict=True)] for n in calls}
    ours_us = fmean(beside["fissile"])
    return {
        "slower": {n: fmean(found) for n, found in slower.items()},
        "spread": {n: [min(found), max(found)] for n, found in slower.items()},
        "ratio": {n: fmean(found) / ours_us for n, found in beside.items()},
        "spinners": SPINNERS,
    }  # fmt: skip


def _mean_us(call: Call, seconds: float) -> float:
    return interleaved({"alone": call}, seconds, least=2)["alone"].mean_us


# a spinner: ends with the process that started it, however that ends
SPIN = """import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(10_000_000): pass
"""


@contextmanager
def _spinning() -> Iterator[None]:
    command = [sys.executable, "-c", SPIN, str(os.getpid())]
    with ExitStack() as stack:
        for _ in range(SPINNERS):
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)  # before its exit waits for it
        time.sleep(0.5)
        yield


def tuning(place: Place, case: Case) -> dict[str, Any]:
    """Compiled without measurements, fully tuned from an empty store, again from the full one, and
    with the first half of what was measured; the plans interleaved at the end. Seconds are those of
    whole compilations, verification included. Other parts know what was measured here."""
    with tempfile.TemporaryDirectory(prefix="fissile-tuning-") as folder:
        empty, store, half = (Path(folder) / f"{n}.sqlite" for n in ("empty", "full", "half"))
        plans, seconds = {}, {}
        runs = (("untuned", 0, empty), ("full", "full", store), ("warm", "full", store))
        for title, tune, known in runs:
            begin = time.monotonic()
            plans[title] = place.fresh(case, tune=tune, store=known)
            seconds[title] = time.monotonic() - begin
        keep_first_half(store, half)
        remember(store, home() / "times.sqlite")
        plans["half"] = place.fresh(case, tune=0, store=half, verify=False)
    feeds = random_feeds(plans["full"].inputs)
    calls = {n: ours(plans[n], feeds) for n in ("full", "untuned", "half")}
    times = interleaved(calls, case.seconds)
    figures = {n: _figures(exe) for n, exe in plans.items()}
    curve = plans["full"].selection.curve
    return {
        "engines": _rows(times), "seconds": seconds, "stages": figures["full"]["seconds"],
        "us": {n: f["us"] for n, f in figures.items()},
        "measured": {n: f["measured"] for n, f in figures.items()},
        "curve": [[p.seconds, p.us, p.measured] for p in curve if math.isfinite(p.us)],
    }  # fmt: skip


def keep_first_half(store: Path, copy: Path) -> None:
    """A copy of a store of measured times without what was measured last."""
    with closing(sqlite3.connect(store)) as known, closing(sqlite3.connect(copy)) as first:
        known.backup(first)
        (middle,) = first.execute(
            "select at from time order by at limit 1 offset (select count(*) / 2 from time)"
        ).fetchone()
        first.execute("delete from time where at > ?", (middle,))
        first.commit()


def remember(store: Path, known: Path) -> None:
    """Add the measured times of `store` to those of `known`."""
    Store(known, StorePlace("", 1, "")).put({})  # it has its tables
    with closing(sqlite3.connect(known, timeout=30.0)) as db:
        db.execute("attach ? as fresh", (str(store),))
        db.execute("insert or ignore into time select * from fresh.time")
        db.commit()


def untuned(place: Place, case: Case) -> dict[str, Any]:
    """Without a single measurement, against the tuned plan."""
    tuned, _ = place.compiled(case)
    feeds = random_feeds(tuned.inputs)
    with tempfile.TemporaryDirectory(prefix="fissile-untuned-") as folder:
        plain = place.fresh(case, tune=0, store=Path(folder) / "times.sqlite", verify=False)
    calls = {"tuned": ours(tuned, feeds), "untuned": ours(plain, feeds)}
    figures = _figures(plain)
    return {
        "engines": _rows(interleaved(calls, case.seconds)),
        "seconds": sum(figures["seconds"].values()), "us": figures["us"],
    }  # fmt: skip


def variants() -> dict[str, tuple[str, ...]]:
    """What the ablation leaves out, by title: parts of the method, then rival implementations."""
    rivals = [i.name for i in IMPLEMENTATIONS if i.rival]
    found = {part: (part,) for part in PARTS_OF_THE_METHOD}
    for title, names in TOGETHER.items():
        if here := tuple(n for n in names if n in rivals):
            found[title] = here
    grouped = {n for names in TOGETHER.values() for n in names}
    return found | {n: (n,) for n in rivals if n not in grouped}


def ablation(place: Place, case: Case) -> dict[str, Any]:
    """Compiled without one part after another; all interleaved with the whole."""
    whole, facts = place.compiled(case)
    feeds = random_feeds(whole.inputs)
    calls, us, faults = {"whole": ours(whole, feeds)}, {"whole": facts["selection"]["us"]}, {}
    for title, names in variants().items():
        try:
            exe = place.fresh(case, without=names, verify=False)
        except FissileError as fault:
            faults[title] = str(fault)[:200]
            continue
        us[title] = exe.manifest.facts["selection"]["us"]
        calls[title] = ours(exe, feeds)
    seconds = case.seconds * len(calls) / 3
    return {"engines": _rows(interleaved(calls, seconds)), "us": us, "faults": faults}


def exported(place: Place, case: Case) -> dict[str, Any]:
    """`fission --optimize` in unmodified runtimes, each interleaved with the model as it was."""
    model = place.model(case)
    graph = load_graph(model, shapes(case))
    better = for_runtimes(graph, RULES.values())
    feeds = random_feeds([
        Tensor(n, v.type) for n, v in zip(graph.input_names, graph.inputs, strict=True)
    ])  # fmt: skip
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fissile-exported-") as folder:
        path = Path(folder) / "optimised.onnx"
        path.write_bytes(save_graph(better, whole=True).SerializeToString())
        for name in PEERS:
            calls = {
                "optimised": peer(name, str(path), feeds, case.threads),
                "model": peer(name, str(model), feeds, case.threads),
            }
            outputs = [[np.array(a) for a in call()] for call in calls.values()]
            apart = max(relative_error(a, b) for a, b in zip(*outputs, strict=True))
            found[name] = _rows(interleaved(calls, case.seconds)) | {"apart": apart}
    return {"engines": found, "primitives": [len(graph.primitives), len(better.primitives)]}


def joint(place: Place, case: Case) -> dict[str, Any]:
    """The program's objective: of the graph as given, of the spelling of fewest operations, and of
    all spellings at once; by what is known of kernels, nothing being measured. The time that
    saturation and the program take."""
    found: dict[str, Any] = {}
    for title, names in (("given", ("rewrites",)), ("sequential", ("joint",)), ("joint", ())):
        exe = place.fresh(case, tune=0, without=names, verify=False)
        s = exe.selection
        found[title] = {"us": s.us, "gap": s.gap, "solver_s": s.seconds,
                        "rewrite_s": exe.stages.seconds["rewrite"]}  # fmt: skip
    return found


def kernels(place: Place, case: Case) -> dict[str, Any]:
    """Kernel shapes of a network against the limits of the core."""
    graph = load_graph(place.model(case), shapes(case))
    found = list(kernel_shapes.rows(case.name, graph, threads=case.threads))
    return {"rows": [asdict(r) | {"work": r.work} for r in found]}


def savings(place: Place, case: Case) -> dict[str, Any]:
    """The chosen kernels that save multiplications against direct ones of the same regions."""
    exe, _ = place.compiled(case)
    chosen = [c["key"] for c in exe.manifest.facts["selection"]["choices"] if c]
    graph = load_graph(place.model(case), shapes(case))
    found = saving_kernels.rows(graph, chosen, case.threads, case.accuracy)
    return {"kernels": len(chosen), "rows": [asdict(r) for r in found]}


def costs(place: Place, case: Case) -> dict[str, Any]:
    """The chosen kernels' costs, measured now, against the latency before and after."""
    exe, _ = place.compiled(case)
    chosen = [c["key"] for c in exe.manifest.facts["selection"]["choices"] if c]
    graph = load_graph(place.model(case), shapes(case))
    call = ours(exe, random_feeds(exe.inputs))
    found = kernel_costs.rounds(graph, chosen, call, case.threads, case.accuracy)
    shares = sorted(r.share for r in found)
    return {"kernels": len(chosen), "share": median(shares),
            "low": shares[0], "high": shares[-1], "rounds": [asdict(r) for r in found]}  # fmt: skip


Part = Callable[[Place, Case], dict[str, Any]]
PARTS: dict[str, Part] = {
    "latency": latency, "fast": latency, "batch": latency, "memory": memory,
    "neighbours": neighbours, "tuning": tuning, "untuned": untuned, "ablation": ablation,
    "kernels": kernels, "savings": savings, "costs": costs, "exported": exported, "joint": joint,
}  # fmt: skip


def source_digest(package: Path) -> str:
    """Of the compiler's own files."""
    files = sorted(p for p in package.rglob("*") if p.suffix in (".py", ".h", ".cpp"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]
