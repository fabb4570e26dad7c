"""What a candidate should cost, before anyone measures it.

    us = launch + max(arithmetic / (peak * efficiency), bytes / bandwidth)

with the bandwidth at the size of the working set. `bound_us` is the same with an efficiency of 1:
no kernel is faster. `Model` multiplies by the ratio of measured to modelled times of the same sort
of kernel (`sorts`). Along the chain of sorts, coarsest first, with n observations of mean m,

    log ratio = (n m + TRUST * log ratio of the coarser sort) / (n + TRUST).

It starts from the ratios that the package brings along, and learns as measurements come in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fissile.cost.calibrate import Calibration
from fissile.cost.sorts import Sort, sorts
from fissile.ir.graph import Node, Value
from fissile.ir.prims import PRIMS, Kind, kind
from fissile.ir.semantics import split_spec
from fissile.kernels.blend import blend_of
from fissile.kernels.candidate import Candidate
from fissile.kernels.region import Region
from fissile.kernels.statistics import statistics_of

ALIAS_US = 1e-3  # free, but never chosen for nothing

UNKNOWN = 0.5  # efficiency of an implementation that nobody told of
ELEMENTWISE, BETWEEN = 0.4, 1.0  # the latter behind a contraction whose result is near
GROUPED = {"conv": 0.2, "chain": 0.6}  # a chain's rows lie in cache
STAGES = {Kind.REDUCE: "rows", Kind.WINDOW: "window"}
SCALAR = 0.05  # an implementation below this is scalar code throughout

TRUST = 2.0  # observations that what is known of the coarser sort counts for
DEFAULTS = 3.0  # observations that those made elsewhere count for, at most
SPREAD = 0.7  # standard deviation of log(measured / modelled) where nothing is known
FASTER, TRIED = 0.65, 30.0  # of it towards faster kernels, until so many were measured
MOST = 4.0  # a larger logarithm says that the model does not understand a kernel, not how it errs


@dataclass(frozen=True)
class Cost:
    """`us` is what the program pays. Of a modelled one also the distribution: the logarithm is
    normal around that of `expected_us`, `deviation` being that towards faster kernels, and none
    takes less than `least_us`."""

    us: float
    source: str  # bound, model, measured
    expected_us: float = 0.0
    deviation: float = 0.0
    least_us: float = 0.0

    def gain_us(self, below_us: float) -> float:
        """By how much it should fall below this, if it does at all, times how likely it is."""
        return max(0.0, self._put(below_us) - self._put(self.least_us))

    def _put(self, strike_us: float) -> float:
        """E max(strike - time, 0), where the logarithm of the time is normal."""
        if strike_us <= 0 or self.expected_us <= 0:
            return 0.0
        if self.deviation <= 0:
            return max(0.0, strike_us - self.expected_us)
        z, s = math.log(strike_us / self.expected_us) / self.deviation, self.deviation
        return strike_us * _normal(z) - self.expected_us * math.exp(s * s / 2) * _normal(z - s)


def _normal(z: float) -> float:
    """The share of a standard normal distribution below z."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


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
    share = demanded(region)
    read = sum(share[v] * v.type.size_bytes for v in (*region.tensors, *region.parameters))
    return round(read) + sum(t.value.type.size_bytes for t in candidate.gives)


def demanded(region: Region) -> dict[Value, float]:
    """The share of every value that a region must know: less than 1 where slices and gathers leave
    the rest out. At most what is read: never more than a kernel reads."""
    share = dict.fromkeys((*region.inputs, *(v for n in region.nodes for v in n.outputs)), 0.0)
    share.update(dict.fromkeys(region.outputs, 1.0))
    for node in reversed(region.nodes):
        out = max(share[v] for v in node.outputs)
        for i, v in enumerate(dict.fromkeys(node.inputs)):
            takes = node.prim in ("slice", "gather") and i == 0
            part = out * node.outputs[0].type.numel / max(v.type.numel, 1) if takes else out
            share[v] = min(1.0, share[v] + part)
    return share


def _moments(candidate: Candidate) -> frozenset[Node]:
    """What takes the moments of a result that is near."""
    extends = candidate.computed_by != candidate.impl
    taken = statistics_of(candidate.region) if extends else None
    return frozenset(taken.nodes if taken else ())


def bound_us(candidate: Candidate, machine: Calibration) -> float:
    """No kernel for this candidate is faster (design, section 8)."""
    if candidate.is_alias:
        return ALIAS_US
    linear = sum(flops(n) for n in candidate.region.nodes if kind(n) is Kind.LINEAR)
    return machine.bound_us(linear / candidate.saving, moved_bytes(candidate))


@dataclass
class Seen:
    """Observations of one sort: their number, the sum of their logarithms, and of the squares."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, log_ratio: float) -> None:
        self.count += 1
        self.total += log_ratio
        self.squares += log_ratio * log_ratio

    def and_(self, other: Seen, weight: float) -> Seen:
        return Seen(
            self.count + weight * other.count,
            self.total + weight * other.total,
            self.squares + weight * other.squares,
        )


@dataclass
class Model:
    """Estimates that learn. `defaults` are observations made elsewhere (`defaults.py`): they count
    for DEFAULTS at most. What does not change is kept by key, as every round asks for every
    candidate."""

    machine: Calibration
    efficiency: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[Sort, Seen] = field(default_factory=dict)
    seen: dict[Sort, Seen] = field(default_factory=dict)
    faster: float = FASTER
    _raw_us: dict[str, float] = field(default_factory=dict, repr=False)
    _sorts: dict[str, tuple[Sort, ...]] = field(default_factory=dict, repr=False)
    _bounds: dict[str, float] = field(default_factory=dict, repr=False)
    _ratios: dict[Sort, tuple[float, float]] = field(default_factory=dict, repr=False)

    def raw_us(self, candidate: Candidate) -> float:
        if candidate.is_alias:
            return ALIAS_US
        if (known := self._raw_us.get(candidate.key)) is None:
            known = self._raw_us[candidate.key] = self._modelled_us(candidate)
        return known

    def _modelled_us(self, candidate: Candidate) -> float:
        size = moved_bytes(candidate)
        memory = size / self.machine.gb_per_s(size) * 1e-3
        share, near = demanded(candidate.region), _moments(candidate)
        arithmetic = sum(
            self._arithmetic_us(n, candidate, n in near) * max(share[v] for v in n.outputs)
            for n in candidate.region.nodes
        )
        return self.machine.launch_us + max(memory, arithmetic) + 0.3 * min(memory, arithmetic)

    def _arithmetic_us(self, node: Node, candidate: Candidate, near: bool) -> float:
        if near:
            return flops(node) / (self.machine.peak_gflops * BETWEEN) * 1e-3
        impl = candidate.computed_by
        saving = candidate.saving if kind(node) is Kind.LINEAR else 1.0
        efficiency = self.efficiency.get(impl, UNKNOWN)
        if kind(node) is Kind.ELEMENTWISE and efficiency > SCALAR:
            linear = sum(kind(n) is Kind.LINEAR for n in candidate.region.nodes)
            efficiency = BETWEEN if linear > 1 else ELEMENTWISE
        if node.prim == "conv" and node.attrs["groups"] > 1 and impl in GROUPED:
            efficiency = GROUPED[impl]
        if impl == "chain" and kind(node) in STAGES:  # each anchor as in a kernel of its own
            efficiency = self.efficiency.get(STAGES[kind(node)], UNKNOWN)
        return flops(node) / saving / (self.machine.peak_gflops * efficiency) * 1e-3

    def us(self, candidate: Candidate, deviations: float = 0.0) -> float:
        """What it should cost; with `deviations` < 0, what it costs if it is so many standard
        deviations better than its sort. Never less than the bound."""
        return self.cost(candidate, deviations).us

    def cost(self, candidate: Candidate, deviations: float = 0.0) -> Cost:
        """The same with its distribution."""
        if candidate.is_alias:
            return Cost(ALIAS_US, "model")
        key = candidate.key
        if (bound := self._bounds.get(key)) is None:
            bound = self._bounds[key] = bound_us(candidate, self.machine)
        log_ratio, deviation = self.log_ratio(self.sorts_of(candidate))
        faster = self.faster * deviation
        expected = max(self.raw_us(candidate) * math.exp(log_ratio), bound)
        shift = deviations * (faster if deviations < 0 else deviation)
        return Cost(max(expected * math.exp(shift), bound), "model", expected, faster, bound)

    def sorts_of(self, candidate: Candidate) -> tuple[Sort, ...]:
        if (known := self._sorts.get(candidate.key)) is None:
            known = sorts(candidate, self.raw_us(candidate))
            self._sorts[candidate.key] = known
        return known

    def log_ratio(self, chain: tuple[Sort, ...]) -> tuple[float, float]:
        """(log ratio, its standard deviation) of the finest sort of a chain."""
        if (known := self._ratios.get(chain[-1])) is None:
            known = self._ratios[chain[-1]] = self._estimate(map(self._observed, chain))
        return known

    def _estimate(self, chain: Iterable[Seen]) -> tuple[float, float]:
        mean, variance = 0.0, SPREAD * SPREAD
        for seen in chain:
            above, mean = mean, (seen.total + TRUST * mean) / (seen.count + TRUST)
            apart = seen.squares - 2 * mean * seen.total + seen.count * mean * mean
            drift = TRUST * (mean - above) ** 2
            variance = (apart + drift + TRUST * variance) / (seen.count + TRUST)
        return mean, math.sqrt(max(variance, 0.0))

    def _observed(self, sort: Sort) -> Seen:
        here, elsewhere = self.seen.get(sort, Seen()), self.defaults.get(sort)
        if elsewhere is None or not elsewhere.count:
            return here
        return here.and_(elsewhere, min(1.0, DEFAULTS / elsewhere.count))

    def learn(self, measured: Iterable[tuple[Candidate, float]]) -> None:
        """All that is known by now: what was learned before is forgotten, `defaults` are not."""
        self.seen, self._ratios = {}, {}
        known: list[tuple[tuple[Sort, ...], float]] = []
        for candidate, us in measured:
            log_ratio = math.log(max(us, 1e-3) / self.raw_us(candidate))
            known.append((self.sorts_of(candidate), max(-MOST, min(MOST, log_ratio))))
        for chain, log_ratio in known:
            for sort in chain:
                self.seen.setdefault(sort, Seen()).add(log_ratio)
        self.faster = self._faster(known)

    def _faster(self, known: Iterable[tuple[tuple[Sort, ...], float]]) -> float:
        """How far kernels are faster than all others let expect, root mean square, in standard
        deviations: 1 were times as often that much faster as slower, but they err to the slow
        side."""
        count, squares = TRIED, TRIED * FASTER * FASTER
        for chain, x in known:
            one = Seen(1.0, x, x * x)
            mean, deviation = self._estimate(self._observed(s).and_(one, -1.0) for s in chain)
            z = min(0.0, (x - mean) / max(deviation, 1e-3))
            count, squares = count + 1, squares + 2 * z * z
        return math.sqrt(squares / count)


def prices(
    candidates: Iterable[Candidate], model: Model, measured: Mapping[str, float],
    deviations: float = 0.0,
) -> list[Cost]:  # fmt: skip
    """A cost for each: measured where known, modelled elsewhere (see `Model.us`)."""
    return [
        Cost(measured[c.key], "measured") if c.key in measured and not c.is_alias
        else model.cost(c, deviations)
        for c in candidates
    ]  # fmt: skip
