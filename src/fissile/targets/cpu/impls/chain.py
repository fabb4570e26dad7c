"""Chains: several anchors in one kernel, with what lies between them in cache.  (design, section 7)

    for each tile of the output:  for each stage, last first: the rows that it has to compute
                                  for each stage, first to last: compute them

A stage is the kernel that another implementation writes for a part of the region, asked for a range
of rows (`writer.Range`). A value between two stages has the strides of the whole tensor, but only
the rows of a tile exist: the stage gets the address where row 0 would lie, so that its indices, and
its borders, are those of the whole. Rows that two tiles need are kept from one to the next within a
span, which is what a thread computes in one go; spans compute them again.

Sums run in the order in which the stage's own kernel runs them, so the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, isqrt

from fissile.ir.graph import Value
from fissile.ir.layout import Token, channels_last, row_major
from fissile.ir.prims import Kind, kind
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No, Packing, Param
from fissile.targets.cpu.impls import contractions, conv, rows, windows
from fissile.targets.cpu.impls.boxes import Cut, Reach, reach
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.split import Stage, split
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Illegal

RESIDENT = 0.75  # share of the second cache for what a tile reads more than once
FROM_L3, FROM_L2 = 1 / 16, 1 / 64  # cycles for a byte, where most of it is hidden
CALL = 200  # cycles for the start of a stage


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region whose anchors stand in a line. f32 only. `params` may hold the rows of
    a tile, and spans for each image."""
    try:
        return _Chain(candidate, machine).kernel()
    except Illegal as reason:
        return reason.no


# ---------------------------------------------------------------- the kernel


class _Chain:
    def __init__(self, candidate: Candidate, machine: Machine):
        if any(v.type.dtype is not F32 for n in candidate.region.nodes for v in n.outputs):
            raise Illegal("not f32")
        self.candidate, self.machine, self.w = candidate, machine, Writer(candidate)
        self.stages = split(candidate.region)
        if len(self.stages) < 2:
            raise Illegal("one anchor alone")
        self.packings: dict[int, Packing | None] = {}
        self.given = {t.value: t for t in candidate.gives}
        self.tokens = {t.value: t for t in candidate.needs} | self.given
        for s in self.stages:
            self.tokens |= {v: self._inner(v, s) for v in s.region.outputs if v not in self.given}
        self.producer = {v: s for s in self.stages for v in s.region.outputs}
        self._cut()
        for s in self.stages:
            self._reach(s)
        self._own_rows()

    def _inner(self, v: Value, s: Stage) -> Token:
        """Feature maps lie channels-last."""
        around = [s, *(r for r in self.stages if v in r.region.inputs)]
        is_map = v.rank > 2 and any(r.is_window and r.anchor.value.rank == v.rank for r in around)
        return Token(v, channels_last(v.rank) if is_map else row_major(v.rank))

    def _cut(self) -> None:
        """Images and lines of each stage's result: those of the maps, else rows of all."""
        stages = self.stages
        for s in stages:
            if s.is_window:
                s.images, s.lines = s.anchor.value.shape[0], s.anchor.value.shape[2]
        known = [k for k, s in enumerate(stages) if s.lines]
        if not known:
            rows_ = [v.type.numel // v.shape[self.tokens[v].layout.order[-1]]
                     for s in stages for v in s.region.outputs]  # fmt: skip
            for s in stages:
                s.images, s.lines = 1, gcd(*rows_)
            return
        for k, s in enumerate(stages):
            if s.lines:
                continue
            before = [i for i in known if i < k]
            s.images = stages[known[0]].images
            after = stages[known[0]].anchor.inputs[0]
            s.lines = stages[before[-1]].lines if before else _unpadded(after).shape[2]

    def _reach(self, s: Stage) -> None:
        """Rows of earlier values, over all that the stage gives."""
        for v in s.region.tensors:
            if v not in self.producer:
                continue
            p = self.producer[v]
            operand = Cut(self.tokens[v], p.images, p.lines)
            found: Reach | None = None
            for out in s.region.outputs:
                one = reach(s.region, Cut(self.tokens[out], s.images, s.lines), operand)
                found = one if found is None or one is None else found.union(one)
            if found is None:
                raise Illegal("a value between stages is not read")
            s.reads[v] = found

    def _own_rows(self) -> None:
        """What is given has the rows of the last stage, and nobody computes a row twice."""
        last = self.stages[-1]
        plain, step = {last.name}, {last.name: 1}
        for s in reversed(self.stages[:-1]):
            readers = self._readers(s)
            steps = {step[r.name] * x.step for r, x in readers}
            if len(steps) != 1 or 0 in steps:
                raise Illegal("a value between stages does not move along with the result")
            (step[s.name],) = steps
            if all(r.name in plain and x.is_own for r, x in readers):
                plain.add(s.name)
            elif any(v in self.given for v in s.region.outputs):
                raise Illegal(
                    "a value that is given would be computed twice at the border of tiles"
                )

    # -- tiles

    def _lengths(self, rows_: int) -> dict[str, int]:
        """Rows of each stage that a tile of so many rows needs at most: the first of a span does,
        where none is clipped."""
        box = {self.stages[-1].name: (0, rows_ - 1)}
        for s in reversed(self.stages[:-1]):
            low = min(x.step * box[r.name][0] + x.first for r, x in self._readers(s))
            high = max(x.step * box[r.name][1] + x.last for r, x in self._readers(s))
            box[s.name] = (low, high)
        return {s.name: min(box[s.name][1] - box[s.name][0] + 1, s.lines) for s in self.stages}

    def _readers(self, s: Stage) -> list[tuple[Stage, Reach]]:
        return [(r, r.reads[v]) for r in self.stages for v in s.region.outputs if v in r.reads]

    def _buffers(self, length: Mapping[str, int]) -> int:
        """Bytes of the rows that lie between stages and nowhere else."""
        return sum(
            4 * length[s.name] * self._elements(s, v) for s in self.stages for v in self._local(s)
        )

    def _elements(self, s: Stage, v: Value) -> int:
        return v.type.numel // (s.images * s.lines)

    def _rows(self) -> int:
        """Rows of a tile of least modelled cycles. For each tile weights pass once, and rows that
        the next one needs move; the more of the second cache a tile fills, the more comes from the
        third."""
        if asked := self.candidate.param.get("rows"):
            return asked
        lines = self.stages[-1].lines
        weights = sum(v.type.size_bytes for v in self.candidate.region.parameters)
        room = RESIDENT * self.machine.l2_bytes
        if self._buffers(self._lengths(1)) > room:
            raise Illegal(
                f"the rows between stages take {self._buffers(self._lengths(1))} B, "
                f"{int(room)} B of the second cache are for them"
            )
        inner = [(s, v) for s in self.stages[:-1] for v in s.region.outputs]
        through = sum(v.type.size_bytes for _, v in inner)
        kept = sum(4 * self._elements(s, v) * max(x.overlap for _, x in self._readers(s))
                   for s, v in inner if self._overlaps(s))  # fmt: skip
        ranked: list[tuple[float, int]] = []
        few = range(1, isqrt(lines) + 1)
        for rows_ in sorted({*few, *(-(-lines // tiles) for tiles in few)}):
            length = self._lengths(rows_)
            if self._buffers(length) > room:
                break
            size = sum(4 * length[s.name] * self._elements(s, v) for s, v in inner)
            tiles = -(-lines // rows_)
            stream = weights * (FROM_L3 if weights + size > room else FROM_L2)
            cycles = tiles * (CALL * len(self.stages) + stream + kept * FROM_L2 * 4)
            cycles += through * FROM_L2 * size / room
            ranked.append((cycles, rows_))
        return min(ranked)[1]

    def _spans(self, rows_: int) -> int:
        """Spans of an image: enough for the threads."""
        last = self.stages[-1]
        if asked := self.candidate.param.get("spans"):
            return asked
        threads = self.machine.threads
        wanted = 1 if threads == 1 else -(-2 * threads // last.images)
        return max(1, min(wanted, last.lines // rows_))

    def kernel(self) -> Kernel:
        rows_ = self._rows()
        length, last = self._lengths(rows_), self.stages[-1]
        spans = self._spans(rows_)
        span = -(-last.lines // spans)
        spans = -(-last.lines // span)
        kernels = [self._kernel(s, length[s.name]) for s in self.stages]
        for s in self.stages:
            for v in self._local(s):
                self.w.local(f"{self._name(v)}_rows", length[s.name] * self._elements(s, v))
        scratch = max(k.scratch_bytes for k in kernels)
        if scratch:
            self.w.local("scratch_of_stages", scratch // 4)
        body = [*self._tile(spans, span), *self._bands(rows_, span, kernels)]
        text = self.w.kernel([f"    {line}" for line in body], last.images * spans)
        sources = [k.source.replace(k.name, self._function(s))
                   for s, k in zip(self.stages, kernels, strict=True)]  # fmt: skip
        return replace(text, source="\n".join([*sources, text.source]))

    def _kernel(self, s: Stage, most: int) -> Kernel:
        """The stage's own kernel, for ranges of rows."""
        near = [f"x{i}" for i, v in enumerate(s.region.tensors) if v in self.producer]
        near += [f"y{i}" for i, v in enumerate(s.region.outputs) if v not in self.given]
        asked: Params = (("range", (most, s.images * s.lines)), ("near", tuple(near)))
        needs = tuple(self.tokens[v] for v in s.region.tensors)
        gives = tuple(self.tokens[v] for v in s.region.outputs)
        part = Candidate(s.region, "stage", asked, needs, gives)
        if kind(s.anchor) is Kind.REDUCE:
            found = rows.lower(part, self.machine)
        elif kind(s.anchor) is Kind.WINDOW:
            found = windows.lower(part, self.machine)
        else:
            found = contractions.lower(part, self.machine) or conv.lower(part, self.machine)
        if isinstance(found, No):
            raise Illegal(f"stage {s.name}: {found.reason}")
        return found

    # -- text

    def _function(self, s: Stage) -> str:
        return f"{self.w.name}_{s.name}"

    def _local(self, s: Stage) -> list[Value]:
        return [v for v in s.region.outputs if v not in self.given]

    def _name(self, v: Value) -> str:
        s = self.producer[v]
        k = self._local(s).index(v)
        return f"{s.name}{k or ''}"

    def _tile(self, spans: int, span: int) -> list[str]:
        """Image and span of tile t."""
        last = self.stages[-1]
        image = "t" if spans == 1 else f"t / {spans}"
        start = "0" if spans == 1 else f"t % {spans} * {span}"
        stop = plus("start", span)
        if last.lines % span:
            stop = f"{stop} < {last.lines} ? {stop} : {last.lines}"
        lines = [f"const int64_t start = {start}, stop = {stop};"]
        if last.images > 1:
            lines.insert(0, f"const int64_t n = {image};")
        kept = [s.name for s in self.stages[:-1] if self._overlaps(s)]
        return lines + [f"int64_t {k}_from = 0, {k}_to = 0;  // rows that are there" for k in kept]

    def _overlaps(self, s: Stage) -> bool:
        """Do two neighbouring tiles need a row of this stage?"""
        reads = [x for _, x in self._readers(s)]
        return bool(self._local(s)) and (any(x.overlap for x in reads) or len(set(reads)) > 1)

    def _bands(self, rows_: int, span: int, kernels: Sequence[Kernel]) -> list[str]:
        z = self.stages[-1].name
        last = f"{z}0 + {rows_}"
        if span % rows_ or self.stages[-1].lines % span:
            last = f"{last} < stop ? {last} : stop"
        lines = [f"const int64_t {z}1 = {last}, {z}2 = {z}0;"]
        for s in reversed(self.stages[:-1]):
            lines += self._needed(s)
        for s, k in zip(self.stages, kernels, strict=True):
            lines += [f"// {self._types(s)}", *self._call(s, k)]
        return block(f"for (int64_t {z}0 = start; {z}0 < stop; {z}0 += {rows_}) {{", lines)

    def _types(self, s: Stage) -> str:
        prims = " ".join(n.prim for n in s.region.nodes)
        return f"{s.name}: {', '.join(repr(self.tokens[v]) for v in s.region.outputs)} = {prims}"

    def _needed(self, s: Stage) -> list[str]:
        """Rows a0 .. a1 of a stage are needed, a2 .. a1 are missing."""
        a = s.name
        bounds = list(dict.fromkeys(self._bounds(r, x, s.lines) for r, x in self._readers(s)))
        first, stop = bounds[0]
        for low, high in bounds[1:]:
            first, stop = f"min({first}, {low})", f"max({stop}, {high})"
        lines = [f"const int64_t {a}0 = {first}, {a}1 = max({a}0, {stop});"]
        if not self._overlaps(s):
            return [*lines, f"const int64_t {a}2 = {a}0;"]
        lines.append(f"const int64_t {a}2 = min({a}1, max({a}0, {a}_to));")
        for v in self._local(s):
            size = self._elements(s, v)
            moved = f"{self._name(v)}_rows, {a}_from, {a}_to, {a}0, {size}"
            lines.append(f"keep_rows({moved});")
        return [*lines, f"{a}_from = {a}0, {a}_to = {a}1;"]

    def _bounds(self, reader: Stage, x: Reach, count: int) -> tuple[str, str]:
        r = reader.name
        if x.is_own:
            return f"{r}2", f"{r}1"
        low = plus((x.step, f"{r}2"), x.first)
        high = plus((x.step, f"{r}1"), x.last + 1 - x.step)
        if x.first < 0:
            low = f"max({low}, int64_t(0))"
        return low, f"min({high}, int64_t({count}))"

    def _call(self, s: Stage, k: Kernel) -> list[str]:
        a, image = s.name, self.stages[-1].images > 1
        lines = []
        for v in self._local(s):
            first = plus((s.lines if image else 0, "n"), f"{a}0")
            at = plus(f"{self._name(v)}_rows", (-self._elements(s, v), f"({first})"))
            lines.append(f"float* const {self._name(v)} = {at};")
        begin, end = (plus((s.lines if image else 0, "n"), f"{a}{i}") for i in (2, 1))
        shared = "(char*)scratch_of_stages" if k.scratch_bytes else "nullptr"
        arguments = [*(self._argument(s, p) for p in k.params), shared, begin, end]
        return [*lines, f"{self._function(s)}({', '.join(arguments)});"]

    def _argument(self, s: Stage, param: Param) -> str:
        if param.role == "constant":
            v = s.region.parameters[param.index]
            i = self.candidate.region.parameters.index(v)
            if self.packings.setdefault(i, param.packing) != param.packing:
                raise Illegal("two stages read one constant in two forms")
            if param.packing:
                self.w.packings[i] = (param.packing, param.elements)
            return f"w{i}"
        v = (s.region.tensors if param.role == "need" else s.region.outputs)[param.index]
        if v in self.given:
            return f"y{list(self.given).index(v)}"
        if v in self.producer:
            return self._name(v)
        return f"x{self.candidate.region.tensors.index(v)}"


def _unpadded(v: Value) -> Value:
    while v.node.prim == "pad":
        v = v.node.inputs[0]
    return v
