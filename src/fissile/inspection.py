"""What `fissile inspect` shows: the data of every stage, as JSON-ready facts and as lines for
people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fissile.artifact.manifest import FILE, REBUILD, read
from fissile.compile import Stages, choices_of, implement
from fissile.errors import ToolchainError, located, shown
from fissile.ir.graph import Graph
from fissile.ir.layout import Token
from fissile.ir.text import text
from fissile.kernels.candidate import Candidate, Kernel
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.plan.choices import choices
from fissile.plan.memory import plan as place
from fissile.plan.order import arrange
from fissile.plan.plan import Launch, Plan, Slot
from fissile.rewrite.rules import RULES
from fissile.select.spellings import constant_bytes, rewritten
from fissile.targets.cpu.host import usable_threads
from fissile.targets.cpu.target import Cpu
from fissile.targets.cpu.toolchain import find

STAGES = ("primitives", "rewrites", "regions", "kernels", "plan")
Facts = dict[str, Any]


def inspect_model(
    model: str, target: str, shapes: Mapping[str, Sequence[int]] | None, stages: Sequence[str]
) -> Facts:
    """The asked stages of an ONNX model; nothing is measured. Raises FissileError."""
    graph = load(model, shapes)
    facts: Facts = {}
    if "primitives" in stages:
        facts["primitives"] = _primitives(graph)
    if "rewrites" in stages:
        facts["rewrites"] = _rewrites(graph)
    if "regions" in stages or "kernels" in stages:
        facts |= _regions(graph, stages)
    if "plan" in stages:
        facts["plan"] = _plan(graph, target)
    return facts


def _primitives(graph: Graph) -> Facts:
    kinds = Counter(n.prim for n in graph.primitives)
    return {
        "count": len(graph.primitives),
        "kinds": dict(sorted(kinds.items())),
        "constant_bytes": sum(n.types[0].size_bytes for n in graph.nodes if n.prim == "constant"),
        "lines": text(graph).splitlines(),
    }


def _rewrites(graph: Graph) -> Facts:
    """What equations found, what of it stands in a spelling, and what they refused."""
    made = rewritten(graph, RULES.values())
    stages = (made.simpler, made.found)
    fired, refused = Counter[str](), Counter[tuple[str, str]]()
    for stage in stages:
        fired += stage.fired
        refused += stage.refused
    won = Counter(e for s in made.spellings for e in set(s.equations.values()))
    in_words = [
        f"spelling: {s.title}: {len(s.graph.primitives)} primitives, {s.us:.0f} us by roofline, "
        f"{constant_bytes(s.graph)} B of constants" for s in made.spellings
    ]  # fmt: skip
    for equation, count in fired.most_common():
        source = RULES[equation].source
        stands = f", in {won[equation]} spellings" if won[equation] else ""
        in_words.append(f"fired {count} times{stands}: {equation} ({source})")
    in_words += [
        f"refused {count} times: {equation}: {reason}"
        for (equation, reason), count in refused.most_common()
    ]
    return {
        "count": fired.total(), "refused": refused.total(), "spellings": len(made.spellings),
        "nodes": len(made.found.classes.nodes), "ended": made.found.ended, "lines": in_words,
    }  # fmt: skip


def _regions(graph: Graph, stages: Sequence[str]) -> Facts:
    cpu = Cpu(graph)
    regions = identify(graph, cpu.limits, cpu.admissible)
    facts: Facts = {}
    if "regions" in stages:
        lines = [" ".join(n.prim for n in r.nodes) for r in regions]
        distinct = len({r.signature for r in regions})
        facts["regions"] = {"count": len(regions), "distinct": distinct, "lines": lines}
    if "kernels" in stages:
        candidates = implement(graph, cpu, regions)
        facts["kernels"] = {
            "count": len(candidates),
            "distinct": len({c.key for c in candidates}),
            "implementations": dict(sorted(Counter(c.impl for c in candidates).items())),
            "lines": [_candidate(c) for c in candidates],
        }
    return facts


def _candidate(c: Candidate) -> str:
    def listed(tokens: Sequence[Token]) -> str:
        return ", ".join(f"{t.value.type}@{t.layout!r}" for t in tokens)

    what = " ".join(n.prim for n in c.region.nodes) or "-"
    return f"{c.impl}: {what}: {listed(c.needs)} -> {listed(c.gives)}"


def _plan(graph: Graph, target: str) -> Facts:
    cpu, choose, woven = choices_of(graph, target, usable_threads(), 0.0, None, find(), Stages())
    selection = choose(0.0, None, None)
    lowered = {c: cpu.kernel(c) for c in selection.chosen if not c.is_alias}
    kernels = {c: k for c, k in lowered.items() if isinstance(k, Kernel)}
    us = {c: cost.us for c, cost in zip(selection.chosen, selection.costs, strict=True)}
    found = place(woven.graph, arrange(woven.graph, selection.chosen), kernels, us)
    won = choices(found, selection)
    return {
        "us": selection.us,
        "gap": selection.gap,
        "arena_bytes": found.arena_bytes,
        "arena_bound_bytes": found.arena_bound_bytes,
        "weights_bytes": found.weights_bytes,
        "opened_bytes": found.opened_bytes,
        "choices": won,
        "lines": _with_rivals(_steps(found, woven.graph), won),
    }


def _steps(found: Plan, graph: Graph) -> list[str]:
    lines: list[str] = []
    for i, step in enumerate(found.steps):
        if not isinstance(step, Launch):
            lines.append(
                f"{i}: copy {step.size_bytes} B {_slot(step.source)} -> {_slot(step.target)}"
            )
            continue
        names = [n for p in step.candidate.region.nodes for n in graph.provenance.get(p, ())]
        origin = ", ".join(shown(n) for n in list(dict.fromkeys(names))[:4])
        slots = ", ".join(map(_slot, step.slots))
        lines.append(
            f"{i}: {step.us:.2f} us {_candidate(step.candidate)} [{slots}] {origin}".rstrip()
        )
    return lines


def _with_rivals(lines: Sequence[str], won: Sequence[Facts | None]) -> list[str]:
    """Steps, each with the price of the next best kernel where there was one."""

    def rival(choice: Facts | None) -> str:
        second = choice["runner_up"] if choice else None
        return (
            f" | before {second['impl']}, {second['us']:.2f} us {second['source']}"
            if second
            else ""
        )

    known = [*won, *[None] * (len(lines) - len(won))]
    return [line + rival(choice) for line, choice in zip(lines, known, strict=True)]


def _slot(slot: Slot) -> str:
    index = slot.index if slot.space in ("input", "output") else ""
    return f"{slot.space}{index}+{slot.offset}"


def inspect_artifact(folder: Path, stages: Sequence[str]) -> Facts:
    """The stages that an artifact tells of. Raises ToolchainError where it is none."""
    manifest = read(folder)
    selection = manifest.facts.get("selection") or {}
    facts: Facts = {}
    if "primitives" in stages:
        lines = _lines(folder / "graph.txt")
        facts["primitives"] = {"count": selection.get("primitives"), "lines": lines}
    if "rewrites" in stages:
        facts["rewrites"] = selection.get("rewrites") or {"count": 0, "lines": []}
    if "regions" in stages:
        facts["regions"] = {"count": selection.get("regions"), "lines": []}
    if "kernels" in stages:
        kernels = {
            k: v
            for k, v in selection.items()
            if k in ("candidates", "kernels", "adapters", "aliases")
        }
        facts["kernels"] = {"count": selection.get("candidates"), **kernels, "lines": []}
    if "plan" in stages:
        steps = [line.strip()[3:] for line in _lines(folder / "model.cpp") if _is_step(line)]
        won = selection.get("choices", [])
        if len(won) > len(steps):
            raise ToolchainError(f"{located(folder)}: {FILE} tells of more steps. {REBUILD}")
        facts["plan"] = {
            **manifest.memory,
            "us": selection.get("us"),
            "gap": selection.get("gap"),
            "choices": won,
            "lines": _with_rivals(steps, won),
        }
    return facts


def _is_step(line: str) -> bool:
    return line.startswith("  // ") and line[5:].split(":", 1)[0].isdigit()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text"
        raise ToolchainError(f"{located(path)}: {reason}. {REBUILD}") from None
