"""The C++ of a plan: model.h (a C API), model.cpp (kernels and one readable `run`), the runtime
headers.

Every distinct kernel is printed once, inside `namespace fissile`, with a comment that says where it
comes from. Beyond `UNIT_KERNELS` kernels they move to files of their own, which compile side by
side. Names of a model are data: they appear in comments escaped by `errors.shown`, which leaves
printable ASCII between quotes, and as string literals of their UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fissile.errors import FissileError, shown
from fissile.ir.graph import Graph, Node
from fissile.ir.types import TensorType
from fissile.kernels.candidate import Candidate, Kernel
from fissile.plan.plan import Launch, Opened, Plan, Slot, Transfer
from fissile.targets.cpu.host import MOST_THREADS
from fissile.targets.cpu.template import HEADER, MODEL

RUNTIME = Path(__file__).parent / "runtime"
UNIT_KERNELS = 64
RUN_STEPS = 250  # steps in one function of a long run
_NAMES = 6  # model node names in one comment
NOT_FOR_KERNELS = ("threads.h", "aligned.h", "pack.h")


@dataclass(frozen=True)
class _Unit:
    """One distinct kernel and the launches that use it."""

    kernel: Kernel
    launches: tuple[Launch, ...]


def emit(plan: Plan, graph: Graph, prefix: str = "model") -> dict[str, str]:
    """File name -> text. `prefix` (a C identifier) begins every exported symbol."""
    if not prefix.isidentifier() or not prefix.isascii():
        raise FissileError(f"{shown(prefix)} is no C identifier")
    units, regions = _units(plan), _regions(plan)
    shared = runtime_files()
    files = {f"runtime/{name}": text for name, text in shared.items()}
    groups = [units] if len(units) <= UNIT_KERNELS else _groups(units)
    apart = len(groups) > 1
    if apart:
        for i, group in enumerate(groups):
            text = "".join(_kernel(u, regions, graph, "void") for u in group)
            files[f"kernels_{i}.cpp"] = f"{_head(graph)}{kernel_includes(shared)}\n{_space(text)}"
    kernels = (
        "".join(f"void {_entry_name(u.kernel)}{_ENTRY};\n" for u in units)
        if apart
        else "".join(_kernel(u, regions, graph, "static void") for u in units)
    )
    files["model.h"] = _header(graph, prefix)
    files["model.cpp"] = _model(plan, graph, prefix, regions, kernels, kernel_includes(shared))
    return files


def runtime_files() -> dict[str, str]:
    """The runtime: name -> text, headers and sources."""
    paths = sorted(p for p in RUNTIME.iterdir() if p.suffix in (".h", ".cpp"))
    return {p.name: p.read_text() for p in paths}


def kernel_includes(runtime: dict[str, str], folder: str = "runtime/") -> str:
    """The lines that include what kernels are written in."""
    names = [n for n in runtime if n.endswith(".h") and n not in NOT_FOR_KERNELS]
    return "".join(f'#include "{folder}{n}"\n' for n in names)


def sources(files: dict[str, str]) -> list[str]:
    """The files to compile, the longest first so that they end together."""
    return sorted((n for n in files if n.endswith(".cpp")), key=lambda n: (-len(files[n]), n))


_ENTRY = "(void** p, char* scratch, long begin, long end)"


def entry(kernel: Kernel, linkage: str) -> str:
    """A function of one fixed type that calls a kernel: NAME_entry(pointers, scratch, begin,
    end)."""
    casts = [
        f"({'' if p.role in ('give', 'work') else 'const '}{p.element}*)p[{i}]"
        for i, p in enumerate(kernel.params)
    ]
    call = ", ".join([*casts, "scratch", "begin", "end"])
    return f"{linkage} {_entry_name(kernel)}{_ENTRY} {{\n  {kernel.name}({call});\n}}\n"


def _entry_name(kernel: Kernel) -> str:
    return f"{kernel.name}_entry"


def _space(text: str) -> str:
    return f"namespace fissile {{\n\n{text}\n}}  // namespace fissile\n"


def _head(graph: Graph) -> str:
    return f"// Written by fissile from the model {shown(graph.name)}. Do not edit.\n"


def _units(plan: Plan) -> list[_Unit]:
    """Distinct kernels in order of first use. Raises FissileError where one name has two texts."""
    found: dict[str, list[Launch]] = {}
    for step in plan.steps:
        if isinstance(step, Launch):
            found.setdefault(step.kernel.name, []).append(step)
    for name, launches in found.items():
        if len({launch.kernel.source for launch in launches}) > 1:
            raise FissileError(f"two different kernels are called {name}")
    return [_Unit(launches[0].kernel, tuple(launches)) for launches in found.values()]


def _groups(units: Sequence[_Unit]) -> list[list[_Unit]]:
    """Parts of at most UNIT_KERNELS kernels and about equal length, order kept."""
    count = -(-len(units) // UNIT_KERNELS)
    share = sum(len(u.kernel.source) for u in units) / count
    groups: list[list[_Unit]] = [[]]
    length = 0
    for unit in units:
        if groups[-1] and (length >= share * len(groups) or len(groups[-1]) >= UNIT_KERNELS):
            groups.append([])
        groups[-1].append(unit)
        length += len(unit.kernel.source)
    return groups


def _regions(plan: Plan) -> dict[int, int]:
    """Candidates' regions, numbered by first launch; adapters have none."""
    numbers: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, Launch) and not step.candidate.is_adapter:
            numbers.setdefault(id(step.candidate.region), len(numbers))
    return numbers


# ---------------------------------------------------------------- kernels


def _kernel(unit: _Unit, regions: dict[int, int], graph: Graph, linkage: str) -> str:
    first = unit.launches[0]
    lines = [f"// {unit.kernel.name}: {_title(first.candidate, regions)}"]
    lines.append(f"//   {_types(first.candidate)}")
    if len(unit.launches) > 1:
        also = ", ".join(str(regions.get(id(u.candidate.region), "-")) for u in unit.launches[1:9])
        lines.append(f"//   launched {len(unit.launches)} times; also region {also}")
    if names := _names([n for u in unit.launches for n in u.candidate.region.nodes], graph):
        lines.append(f"//   from {names}")
    lines.append(
        f"//   {first.us:.2f} us, {unit.kernel.tiles} tiles, {unit.kernel.scratch_bytes} B scratch"
    )
    source = unit.kernel.source.strip("\n")
    return "\n".join(lines) + f"\n{source}\n\n{entry(unit.kernel, linkage)}\n"


def _title(candidate: Candidate, regions: dict[int, int]) -> str:
    if candidate.is_adapter:
        return f"adapter, {_safe(candidate.impl)}"
    prims = [n.prim for n in candidate.region.nodes]
    shown_prims = " ".join(prims[:8]) + (f" and {len(prims) - 8} more" if len(prims) > 8 else "")
    return f"region {regions[id(candidate.region)]}, {_safe(candidate.impl)}: {_safe(shown_prims)}"


def _types(candidate: Candidate) -> str:
    def one(tokens: Sequence) -> str:
        return ", ".join(f"{t.value.type}@{t.layout!r}" for t in tokens)

    parameters = ", ".join(str(v.type) for v in candidate.region.parameters)
    constants = f" with {parameters}" if parameters else ""
    return f"{one(candidate.needs)}{constants} -> {one(candidate.gives)}"


def _names(nodes: Sequence[Node], graph: Graph) -> str:
    """The model's node names behind these primitives, escaped."""
    names = list(dict.fromkeys(name for n in nodes for name in graph.provenance.get(n, ())))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(shown(name) for name in names[:_NAMES]) + more


def _safe(text: str) -> str:
    return text if text.isascii() and text.isprintable() and "\\" not in text else shown(text)


# ---------------------------------------------------------------- model.cpp


def _model(
    plan: Plan, graph: Graph, prefix: str, regions: dict[int, int], kernels: str, includes: str
) -> str:
    parts = list(_run_parts(plan, graph, prefix, regions))
    fill = {
        "HEAD": _head(graph), "PREFIX": prefix, "INCLUDES": includes, "KERNELS": _space(kernels),
        "ARENA": str(plan.arena_bytes), "SCRATCH": str(_scratch(plan)),
        "WEIGHTS": str(plan.weights_bytes), "OPENED": str(plan.opened_bytes),
        "THREADS": str(MOST_THREADS),
        "PACKS": "".join(map(_pack, plan.opened)),
        "STEPS": str(len(plan.steps)), "PARTS": "".join(text for _, text in parts),
        "CALLS": "".join(f"  {name}(m, input, output);\n" for name, _ in parts),
        "INPUTS": _tensors("inputs", graph.input_names, [v.type for v in graph.inputs]),
        "OUTPUTS": _tensors("outputs", graph.output_names, [v.type for v in graph.outputs]),
        "INPUT_COUNT": str(len(graph.inputs)), "OUTPUT_COUNT": str(len(graph.outputs)),
    }  # fmt: skip
    pieces = MODEL.split("@")  # text, key, text, key, ..., text
    return "".join(fill[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _scratch(plan: Plan) -> int:
    return -(-plan.scratch_bytes // 64) * 64 + 64  # a line apart, so that threads never share one


def _run_parts(
    plan: Plan, graph: Graph, prefix: str, regions: dict[int, int]
) -> Iterator[tuple[str, str]]:
    """(name, text) of functions that run the steps one after another."""
    for part, start in enumerate(range(0, len(plan.steps), RUN_STEPS)):
        name = f"steps_{part}"
        lines = [
            f"void {name}({prefix}* m, const void* const* input, void* const* output) {{",
            "  char* const arena = m->arena;",
            "  const char* const weights = m->weights;",
            "  const char* const opened = m->opened;",
        ]
        for i, step in enumerate(plan.steps[start : start + RUN_STEPS], start):
            lines += _step(i, step, graph, regions)
        yield (
            name,
            "\n".join(
                [
                    *lines,
                    "  (void)arena, (void)weights, (void)opened, (void)input, (void)output;",
                    "}\n\n",
                ]
            ),
        )


def _step(i: int, step: Launch | Transfer, graph: Graph, regions: dict[int, int]) -> Iterator[str]:
    yield ""
    if isinstance(step, Transfer):
        source, target = _pointer(step.source), _pointer(step.target)
        yield f"  // {i}: copy {step.size_bytes} B"
        yield f"  copy(m, {i}, {target}, {source}, {step.size_bytes});"
        return
    names = _names(step.candidate.region.nodes, graph)
    origin = f", from {names}" if names else ""
    yield f"  // {i}: {_title(step.candidate, regions)}, {step.us:.2f} us{origin}"
    pairs = zip(step.kernel.params, step.slots, strict=True)
    pointers = ", ".join(f"/*{_safe(p.name)}*/ {_pointer(slot)}" for p, slot in pairs)
    kernel = f"fissile::{_entry_name(step.kernel)}, {step.kernel.tiles}"
    launch = "launch_and_close" if step.kernel.closes else "launch"
    yield f"  {launch}(m, {i}, {kernel}, {{{pointers}}});"


def _pack(opened: Opened) -> str:
    """The call of the run time's function by the packer's name: to, from, the shape, the
    packing's arguments."""
    where = Slot("opened", 0, opened.offset)
    target, source = _pointer(where), _pointer(opened.source)
    numbers = ", ".join(map(str, (*opened.value.shape, *opened.packing.args)))
    call = f"fissile::{opened.packing.packer}"
    return f"  {call}((float*)({target}), (const float*)({source}), {numbers});\n"


def _pointer(slot: Slot) -> str:
    if slot.space in ("arena", "weights", "opened"):
        return f"{slot.space} + {slot.offset}" if slot.offset else slot.space
    place = f"{slot.space}[{slot.index}]"
    cast = "const char*" if slot.space == "input" else "char*"
    return f"({cast}){place} + {slot.offset}" if slot.offset else place


def _tensors(name: str, names: Sequence[str], types: Sequence[TensorType]) -> str:
    lines = []
    for i, t in enumerate(types):
        extents = ", ".join(map(str, t.shape)) or "0"
        lines.append(f"const int64_t {name}_shape_{i}[] = {{{extents}}};\n")
    rows = [
        f'  {{{literal(n)}, "{t.dtype.name}", {t.rank}, {name}_shape_{i}, {t.size_bytes}}},\n'
        for i, (n, t) in enumerate(zip(names, types, strict=True))
    ]
    rows = rows or ["  {nullptr, nullptr, 0, nullptr, 0},\n"]
    return "".join([*lines, f"const fissile_tensor {name}_table[] = {{\n", *rows, "};\n"])


def literal(text: str) -> str:
    """A C string literal with the UTF-8 bytes of any text; long ones in pieces."""
    data = text.encode("utf-8", "surrogatepass")
    plain = set(range(0x20, 0x7F)) - set(b'"\\?')
    pieces = [
        "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data[i : i + 500])
        for i in range(0, max(1, len(data)), 500)
    ]
    return "\n    ".join(f'"{piece}"' for piece in pieces)


def _header(graph: Graph, prefix: str) -> str:
    plain = HEADER.replace("@PREFIX@", prefix).replace("@THREADS@", str(MOST_THREADS))
    return plain.replace("@HEAD@", _head(graph))  # last: it may hold any name
