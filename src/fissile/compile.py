"""The pipeline, one line an arrow.                                              (design, section 2)

    load -> fission -> rewrite -> identify -> implement -> weave -> tune -> order -> place -> emit
        -> build -> verify

Each stage is a function of frozen data. `observe(stage, value)` is the one hook: it times the
stage, counts what came out, and drives the progress display.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fissile.accuracy import Noise, allowance
from fissile.artifact.executable import Executable
from fissile.artifact.load import load as load_artifact
from fissile.artifact.write import check_target, write
from fissile.cost.defaults import defaults
from fissile.cost.model import Model
from fissile.cost.store import Store, home
from fissile.errors import ModelError, TargetError, shown
from fissile.ir.graph import Graph, Node
from fissile.ir.verify import verify as well_formed
from fissile.kernels.candidate import Candidate
from fissile.kernels.identify import identify
from fissile.kernels.region import Region
from fissile.onnx.load import load
from fissile.plan.choices import choices
from fissile.plan.memory import plan as place
from fissile.plan.order import arrange
from fissile.rewrite.rules import RULES
from fissile.select.ablate import ablated, check_without
from fissile.select.limits import limits as used
from fissile.select.spellings import Spelling, as_given, counted, rewritten
from fissile.select.tune import Selection, tune
from fissile.select.weave import Woven, weave
from fissile.targets.cpu.build import build
from fissile.targets.cpu.calibrate import calibrate
from fissile.targets.cpu.emit import emit
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.host import checked_threads, usable_threads
from fissile.targets.cpu.implementations import BY_NAME
from fissile.targets.cpu.packing import pack
from fissile.targets.cpu.target import VERSION, Cpu
from fissile.targets.cpu.toolchain import Toolchain, find
from fissile.verify import POLICY, References, WrongAnswer, check, most_error, onnxruntime_run

TUNE_S = 60.0
FULL_S = 3600.0
RETUNE = 0.25  # of the time of tuning, after a plan was wrong

Progress = Callable[[str, float, float], None]  # what is happening, share done, seconds left
Measured = Callable[[], None] | None  # called when the machine need not be quiet any more
Choose = Callable[[float, Noise | None, Measured], Selection]  # within seconds, a limit on noise


@dataclass
class Stages:
    """What every stage took and gave: the one place that watches the pipeline."""

    progress: Progress = lambda what, share, left: None
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def observe(self, stage: str, value: Any) -> Any:
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
        self.values[stage] = value
        if isinstance(value, Sequence):
            self.counts[stage] = len(value)
        self.progress(stage, 0.0, 0.0)
        return value


def compile(
    model: Any,
    target: str = "cpu",
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    tune: str | float = TUNE_S,
    accuracy: str = "default",
    store: str | Path | None = None,
    verify: bool = True,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    without: Collection[str] = (),
    blocks: bool = False,
) -> Executable:
    """A compiled model.

    model: path, bytes or ModelProto. shapes: extents of dynamic inputs by name. threads: None takes
    every processor. tune: seconds of measuring, "full", or 0 for the cost model alone. accuracy:
    exact, default or fast. store: file of measured times. folder: where the artifact goes; None: a
    temporary one. without: what to leave out, to measure its worth: names of implementations, or of
    parts of the method (`select/ablate.py`): fusion, program, recomputation, channels-first,
    channels-last, columns. blocks: may channels lie in blocks too, a longer search? Raises
    ModelError, TargetError, ToolchainError, or WrongAnswer where verification fails; TypeError or
    ValueError for an option that means nothing.
    """
    if accuracy not in POLICY:
        raise ValueError(f"accuracy is one of {', '.join(POLICY)}, not {accuracy!r}")
    check_without(without, BY_NAME)
    threads = checked_threads(threads)
    seconds = budget_s(tune)
    if folder is not None:
        check_target(Path(folder))  # now, and not after minutes of tuning
    stages = Stages(progress or (lambda what, share, left: None))
    graph = stages.observe("load", load(model, shapes))
    well_formed(graph)
    threads, toolchain = threads or usable_threads(), find()
    cpu, choose, woven = choices_of(
        graph, target, threads, seconds, store, toolchain, stages,
        without=without, accuracy=accuracy, blocks=blocks,
    )  # fmt: skip

    def right(part: Path) -> None:
        built = load_artifact(part, threads, verify=False)
        stages.observe("build", part)  # not what was built: its memory ends here
        if verify:
            stages.observe("verify", checked(model, graph, built, accuracy, references))

    facts = {"threads": threads, "accuracy": accuracy}
    with References(graph) as references, _place(folder) as where:
        begin = references.begin if verify else None
        selection = stages.observe("tune", choose(seconds, None, begin))
        made = partial(make, where, graph, woven, cpu, toolchain=toolchain, facts=facts)
        made = partial(made, stages=stages, check=right)
        again = partial(choose, RETUNE * seconds)
        selection = until_right(graph, woven, selection, made, again, stages)
        executable = load_artifact(
            where, threads, verify=False, selection=selection, temporary=folder is None
        )
    executable.stages = stages
    return executable


def until_right(
    graph: Graph, woven: Woven, selection: Selection, made: Callable[[Selection], None],
    again: Callable[[Noise, Measured], Selection], stages: Stages,
) -> Selection:  # fmt: skip
    """`selection`, or the first after it whose program is right: `made` makes and checks it,
    `again` chooses within a limit on noise. Raises WrongAnswer where the last one is wrong too."""
    for attempt in count(1):
        try:
            made(selection)
            break
        except WrongAnswer as wrong:
            noise = allowance(graph, selection.chosen, wrong, attempt, woven.home)
            if noise is None:
                raise
            selection = stages.observe("tune", again(noise, None))
    return selection


@contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    """Where the artifact goes. A temporary folder goes away again where the body fails."""
    if folder is not None:
        yield Path(folder)
        return
    where = Path(tempfile.mkdtemp(prefix="fissile-"))
    try:
        yield where
    except BaseException:
        shutil.rmtree(where, ignore_errors=True)
        raise


def make(
    where: Path, graph: Graph, woven: Woven, cpu: Cpu, selection: Selection,
    toolchain: Toolchain, facts: Mapping[str, Any], stages: Stages, check: Callable[[Path], None],
) -> None:  # fmt: skip
    """From the chosen candidates to a folder that `check` accepts."""
    kernels = {c: k for c in selection.chosen if not c.is_alias and (k := cpu.kernel(c))}
    us = {c: cost.us for c, cost in zip(selection.chosen, selection.costs, strict=True)}
    order = stages.observe("order", arrange(woven.graph, selection.chosen))
    plan = stages.observe("place", place(woven.graph, order, kernels, us))
    files = stages.observe("emit", emit(plan, woven.graph))
    said = summary(graph, selection, stages) | {"choices": choices(plan, selection)}
    said["rewrites"] = executed(woven, selection)
    called = {name for k in kernels.values() for name in k.libraries}
    built = partial(build, toolchain=toolchain, libraries=called)
    write(where, graph, plan, files, pack, built, {"selection": said, **facts}, check=check)


def executed(woven: Woven, selection: Selection) -> dict[str, Any]:
    """The equations to which executed primitives are due, and how many."""
    nodes = {n for c in selection.chosen for n in c.region.nodes}
    counts = Counter(woven.equations[n] for n in nodes if n in woven.equations)
    lines = [f"{count} primitives: {equation}" for equation, count in counts.most_common()]
    return {"count": counts.total(), "lines": lines}


def budget_s(tune: str | float) -> float:
    """Seconds of tuning. Raises ValueError where it is neither a number nor "full"."""
    if tune == "full":
        return FULL_S
    try:
        seconds = float(tune)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"tune is a number of seconds or 'full', not {tune!r}")
    return seconds


def choices_of(
    graph: Graph, target: str, threads: int, seconds: float, store: str | Path | None,
    toolchain: Toolchain, stages: Stages, *, without: Collection[str] = (),
    accuracy: str = "default", blocks: bool = False,
) -> tuple[Cpu, Choose, Woven]:  # fmt: skip
    """From a graph to the function that chooses among the candidates of all its spellings."""
    if target != "cpu":
        raise TargetError(f"target {shown(str(target))} is unknown: this version knows cpu")
    cpu, woven = offer(graph, threads, accuracy, stages, without=without, blocks=blocks)
    machine = stages.observe("calibrate", calibrate(toolchain, threads))
    bench = CpuBench(toolchain, threads, version=VERSION)
    known = Store(Path(store) if store else home() / "times.sqlite", bench.place)
    measuring, once = bench if seconds else None, "recomputation" in without

    def choose(budget_s: float, noise: Noise | None, measured: Measured) -> Selection:
        costs = Model(machine, cpu.efficiency, defaults())
        limits = (*used(woven.base, woven.candidates), *((noise,) if noise else ()))
        return tune_(
            woven.computation, woven.candidates, cpu, costs, measuring, known, budget_s,
            stages.progress, once, limits, measured,
        )  # fmt: skip

    return cpu, choose, woven


def offer(
    graph: Graph, threads: int, accuracy: str = "default", stages: Stages | None = None, *,
    without: Collection[str] = (), blocks: bool = False,
) -> tuple[Cpu, Woven]:  # fmt: skip
    """Every candidate of every spelling of a graph, and what lowers them. None adds more error than
    `accuracy` allows."""
    stages = stages or Stages()
    on = partial(Cpu, threads=threads, without=without, error=most_error(accuracy), blocks=blocks)
    found = stages.observe("rewrite", spelt(graph, accuracy, without))
    cpu = on(found[0].graph)
    targets = [cpu, *(on(s.graph, like=cpu) for s in found[1:])]
    regions = [identify(c.graph, c.limits, c.admissible) for c in targets]
    stages.observe("identify", [r for some in regions for r in some])
    offers = [
        ablated(c.graph, implement(c.graph, c, some, stages.progress), without, c.last_resorts)
        for c, some in zip(targets, regions, strict=True)
    ]
    woven = weave(list(zip(found, offers, strict=True)))
    stages.observe("implement", woven.candidates)
    cpu.originals = woven.original
    return cpu, woven


def spelt(graph: Graph, accuracy: str, without: Collection[str]) -> tuple[Spelling, ...]:
    """The ways to compute a graph that the selection may choose among."""
    if "rewrites" in without:
        return (as_given(graph),)
    exact = accuracy == "exact"
    if {"joint", "program"} & set(without):
        return (counted(graph, RULES.values(), exact),)
    return rewritten(graph, RULES.values(), exact).spellings


def tune_(*arguments: Any) -> Selection:
    try:
        return tune(*arguments)
    except ValueError as error:
        raise TargetError(f"the model cannot be computed on this target: {error}") from None


def implement(
    graph: Graph, cpu: Cpu, regions: Sequence[Region], progress: Progress | None = None
) -> tuple[Candidate, ...]:
    """Every candidate. Raises TargetError where nothing computes some primitive."""
    found: list[Candidate] = []
    start = time.monotonic()
    for i, region in enumerate(regions):
        found += cpu.implementations(region)
        if progress and i % 64 == 63:
            left = (time.monotonic() - start) / (i + 1) * (len(regions) - i - 1)
            progress("lowering regions", (i + 1) / len(regions), left)
    computed = {n for c in found for n in c.region.nodes}
    for node in graph.primitives:
        if node not in computed:
            raise TargetError(_nothing_for(graph, node))
    return (*found, *(c for c in cpu.adapters() if cpu.is_legal(c)))


def _nothing_for(graph: Graph, node: Node) -> str:
    origin = ", ".join(shown(n) for n in graph.provenance.get(node, ())[:3]) or "a folded constant"
    types = ", ".join(str(v.type) for v in node.inputs)
    return (
        f"no C++ implementation of {node.prim}({types}) -> {node.types[0]} for target cpu, "
        f"which comes from node {origin}: `fissile fission` writes the model with ONNX operators "
        "that other runtimes execute"
    )


def checked(
    model: Any, graph: Graph, executable: Executable, accuracy: str, references: References
) -> Any:
    """Verify on samples (design, section 13)."""
    ordinary = onnxruntime_run(model_bytes(model), graph)

    def run(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        outputs = executable(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return check(graph, run, ordinary, accuracy, references)


def model_bytes(model: Any) -> bytes | str:
    """What ONNX Runtime opens: a path (it finds external data itself) or bytes."""
    if isinstance(model, onnx.ModelProto):
        return model.SerializeToString()
    return model if isinstance(model, bytes) else str(model)


def summary(graph: Graph, selection: Selection, stages: Stages) -> dict[str, Any]:
    """Figures of a compilation, for the manifest and `--json`."""
    return {
        "primitives": len(graph.primitives), "regions": stages.counts["identify"],
        "candidates": stages.counts["implement"],
        "kernels": sum(not c.is_alias for c in selection.chosen),
        "adapters": sum(c.is_adapter for c in selection.chosen),
        "aliases": sum(c.is_alias for c in selection.chosen),
        "us": selection.us, "gap": selection.gap, "status": selection.status,
        "solver_seconds": selection.seconds, "columns": selection.columns, "rows": selection.rows,
        "measured": selection.measured, "rounds": selection.rounds,
        "faults": len(selection.faults),
        "seconds": {k: round(s, 3) for k, s in stages.seconds.items()},
    }  # fmt: skip


__all__ = ["Executable", "ModelError", "compile"]
