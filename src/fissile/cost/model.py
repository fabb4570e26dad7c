"""What a candidate should cost, before anyone measures it.

    us = launch + max(arithmetic / (peak * efficiency), bytes / bandwidth)

with the bandwidth at the size of the working set. `bound_us` is the same with an efficiency of 1:
no kernel is faster. `Model` multiplies by the ratio of measured to modelled times of the same sort
of kernel, which it learns as measurements come in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from fissile.cost.calibrate import Calibration
from fissile.ir.graph import Node, Value
from fissile.ir.prims import PRIMS, Kind, kind
from fissile.ir.semantics import split_spec
from fissile.kernels.blend import blend_of
from fissile.kernels.candidate import Candidate
from fissile.kernels.region import Region

Sort = tuple[str, ...]

ALIAS_US = 1e-3  # free, but never chosen for nothing

UNKNOWN = 0.5  # efficiency of an implementation that nobody told of
ELEMENTWISE, BETWEEN = 0.4, 1.0  # the latter where contractions stand on both sides
STAGES = {Kind.REDUCE: "rows", Kind.WINDOW: "window"}
SCALAR = 0.05  # an implementation below this is scalar code throughout


@dataclass(frozen=True)
class Cost:
    us: float
    source: str  # bound, model, measured


def flops(node: Node) -> float:
    """Arithmetic of a primitive; a vector operation counts two, as the fused multiply-add it could
    be."""
    out = node.outputs[0].type.numel
    if blend := blend_of(node):
        return 2.0 * out * blend.terms
    if node.prim == "contract":
        left, right, _ = split_spec(node.attrs["spec"])
        extents = {
            x: s
            for ls, v in zip((left, right), node.inputs, strict=True)
            for x, s in zip(ls, v.shape, strict=True)
        }
        return 2.0 * math.prod(extents.values())
    if node.prim == "conv":
        return 2.0 * out * math.prod(node.inputs[1].shape[1:])
    if kind(node) is Kind.WINDOW:
        return 2.0 * out * math.prod(node.attrs["kernel"])
    if kind(node) is Kind.REDUCE:
        return 2.0 * node.inputs[0].type.numel
    return 2.0 * PRIMS[node.prim].flops * out if kind(node) is Kind.ELEMENTWISE else 0.0


def moved_bytes(candidate: Candidate) -> int:
    """Bytes read and written at least once."""
    region = candidate.region
    if candidate.is_adapter:
        return sum(t.value.type.size_bytes for t in (*candidate.needs, *candidate.gives))
    read = sum(_read_bytes(region, v) for v in (*region.tensors, *region.parameters))
    return read + sum(t.value.type.size_bytes for t in candidate.gives)


def _read_bytes(region: Region, v: Value) -> int:
    """What a region reads of an input: parts only, where nothing but slices and gathers look at
    it."""
    readers = [n for n in region.nodes if v in n.inputs]
    if not all(n.prim in ("slice", "gather") and n.inputs[0] is v for n in readers):
        return v.type.size_bytes
    return min(v.type.size_bytes, sum(n.outputs[0].type.size_bytes for n in readers))


def bound_us(candidate: Candidate, machine: Calibration) -> float:
    """No kernel for this candidate is faster (design, section 8)."""
    if candidate.is_alias:
        return ALIAS_US
    linear = sum(flops(n) for n in candidate.region.nodes if kind(n) is Kind.LINEAR)
    return machine.bound_us(linear / candidate.saving, moved_bytes(candidate))


@dataclass
class Model:
    """Estimates that learn. `ratios` holds measured / modelled by sort of kernel: the median of
    three or more. What does not change is kept by key, as every round asks for every candidate."""

    machine: Calibration
    efficiency: Mapping[str, float] = field(default_factory=dict)
    ratios: dict[Sort, float] = field(default_factory=dict)
    _raw_us: dict[str, float] = field(default_factory=dict, repr=False)
    _sorts: dict[str, tuple[Sort, Sort]] = field(default_factory=dict, repr=False)

    def raw_us(self, candidate: Candidate) -> float:
        if candidate.is_alias:
            return ALIAS_US
        if (known := self._raw_us.get(candidate.key)) is None:
            known = self._raw_us[candidate.key] = self._modelled_us(candidate)
        return known

    def _modelled_us(self, candidate: Candidate) -> float:
        size = moved_bytes(candidate)
        memory = size / self.machine.gb_per_s(size) * 1e-3
        arithmetic = sum(self._arithmetic_us(n, candidate) for n in candidate.region.nodes)
        return self.machine.launch_us + max(memory, arithmetic) + 0.3 * min(memory, arithmetic)

    def _arithmetic_us(self, node: Node, candidate: Candidate) -> float:
        impl = candidate.impl
        saving = candidate.saving if kind(node) is Kind.LINEAR else 1.0
        efficiency = self.efficiency.get(impl, UNKNOWN)
        if kind(node) is Kind.ELEMENTWISE and efficiency > SCALAR:
            linear = sum(kind(n) is Kind.LINEAR for n in candidate.region.nodes)
            efficiency = BETWEEN if linear > 1 and impl != "chain" else ELEMENTWISE
        if node.prim == "conv" and node.attrs["groups"] > 1 and impl in ("conv", "chain"):
            efficiency = 0.2
        if impl == "chain" and kind(node) in STAGES:  # each anchor as in a kernel of its own
            efficiency = self.efficiency.get(STAGES[kind(node)], UNKNOWN)
        return flops(node) / saving / (self.machine.peak_gflops * efficiency) * 1e-3

    def us(self, candidate: Candidate) -> float:
        if candidate.is_alias:
            return ALIAS_US
        modelled = self.raw_us(candidate) * self._ratio(candidate)
        return max(modelled, bound_us(candidate, self.machine))

    def _ratio(self, candidate: Candidate) -> float:
        fine, coarse = self._sorts_of(candidate)
        return self.ratios.get(fine) or self.ratios.get(coarse) or 1.0

    def _sorts_of(self, candidate: Candidate) -> tuple[Sort, Sort]:
        if (known := self._sorts.get(candidate.key)) is None:
            known = self._sorts[candidate.key] = sorts(candidate)
        return known

    def learn(self, measured: Iterable[tuple[Candidate, float]]) -> None:
        found: dict[Sort, list[float]] = {}
        for candidate, us in measured:
            for sort in self._sorts_of(candidate):
                found.setdefault(sort, []).append(us / self.raw_us(candidate))
        self.ratios = {sort: median(known) for sort, known in found.items() if len(known) >= 3}


def sorts(candidate: Candidate) -> tuple[Sort, Sort]:
    """A fine and a coarse sort of kernel: implementation and layouts, with and without what is
    unusual."""
    layout = "".join(
        sorted(
            {"f" if t.layout.is_row_major else "l" for t in (*candidate.needs, *candidate.gives)}
        )
    )
    marks = sorted({n.prim for n in candidate.region.nodes if kind(n) not in (Kind.ELEMENTWISE,)})
    groups = [str(n.attrs["groups"] > 1) for n in candidate.region.nodes if n.prim == "conv"]
    impl = (candidate.impl, f"{candidate.saving:.3g}")
    return (*impl, layout, *groups, *marks), (*impl, layout, *groups)


def prices(
    candidates: Iterable[Candidate], model: Model, measured: Mapping[str, float]
) -> list[Cost]:
    """A cost for each: measured where known, modelled elsewhere."""
    return [
        Cost(ALIAS_US, "model") if c.is_alias
        else Cost(measured[c.key], "measured") if c.key in measured
        else Cost(model.us(c), "model")
        for c in candidates
    ]  # fmt: skip
