"""The stages of a chain: one anchor each, with what is computed along with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fissile.ir.graph import Node, Value
from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.boxes import Reach
from fissile.tiles.expr import Illegal

ANCHORS = (Kind.LINEAR, Kind.WINDOW)
MOST = 8


def takes(region: Region) -> bool:
    """Several anchors, and products by constants only."""
    anchors = [n for n in region.nodes if kind_in_kernel(n) in ANCHORS]
    if any(n.prim in ("conv", "contract") and not _has_constant(n) for n in anchors):
        return False
    return len(anchors) > 1 or (len(anchors) == 1 and Kind.REDUCE in map(kind, region.nodes))


def _has_constant(n: Node) -> bool:
    return any(v.is_constant for v in n.inputs)


@dataclass
class Stage:
    """One anchor and what is computed with it. `region.outputs` are read by later stages or given.
    `reads` tells the rows of earlier values that a row needs."""

    name: str
    anchor: Node
    region: Region
    images: int = 0
    lines: int = 0
    reads: dict[Value, Reach] = field(default_factory=dict)

    @property
    def is_window(self) -> bool:
        return self.anchor.prim == "conv" or kind(self.anchor) is Kind.WINDOW


def split(region: Region) -> list[Stage]:
    """Stages from first to last: after each anchor all that its result is enough for; what stands
    before an anchor alone, such as pads, goes with it. Raises Illegal."""
    level = _levels(region)
    count = max(level.values())
    found: list[Stage] = []
    for k in range(1, count + 1):
        nodes = tuple(n for n in region.nodes if level[n] == k)
        anchors = [n for n in nodes if kind_in_kernel(n) in ANCHORS]
        sums = [n for n in nodes if kind(n) is Kind.REDUCE]
        if len(anchors) > 1 or (anchors and sums) or not (anchors or sums):
            raise Illegal("anchors side by side")
        later = {v for n in region.nodes if level[n] > k for v in n.inputs}
        outputs = tuple(v for n in nodes for v in n.outputs if v in later or v in region.outputs)
        found.append(Stage(chr(ord("a") + k - 1), (anchors or sums)[0], Region(nodes, outputs)))
    return found


def _levels(region: Region) -> dict[Node, int]:
    level: dict[Node, int] = {}
    sums: dict[int, tuple[object, ...]] = {}  # level of a normalisation -> its domain
    for n in region.nodes:
        below = max((level[v.node] for v in n.inputs if v.node in level), default=0)
        if kind_in_kernel(n) in ANCHORS:
            below += 1
        elif kind(n) is Kind.REDUCE:
            domain = (n.inputs[0].shape, n.attrs["axes"])
            below += sums.get(below) != domain
            sums[below] = domain
        level[n] = below
    for n in reversed(region.nodes):  # what an anchor alone reads is computed with it
        readers = [level[r] for r in region.nodes if n.value in r.inputs]
        if readers and (level[n] == 0 or n.prim == "pad"):
            level[n] = min(readers)
    if min(level.values()) == 0:
        raise Illegal("a part of the region is no stage")
    if max(level.values()) > MOST:
        raise Illegal("too many anchors")
    return level
