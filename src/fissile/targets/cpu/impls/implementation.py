"""What an implementation says of itself: one row of `targets/cpu/implementations.py`.

    lower(candidate, machine) -> Kernel | No

Everything that the target, the search for regions and the cost model need to know about a way to
compute regions stands in its row, so that a new one touches its own file and that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fissile.ir.graph import Node
from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.targets.cpu.machine import Machine

Params = tuple[tuple[str, Any], ...]


def plain(candidate: Candidate, machine: Machine) -> Iterable[Params]:
    """One variant, without parameters."""
    return ((),)


def one_anchor(nodes: Sequence[Node]) -> bool:
    """At most one contraction or pool, and reductions apart from both, over one domain; an opaque
    primitive alone."""
    kinds = [kind_in_kernel(n) for n in nodes]
    anchors = sum(k in (Kind.LINEAR, Kind.WINDOW) for k in kinds)
    reduces = [n for n in nodes if kind(n) is Kind.REDUCE]
    if anchors > 1 or (anchors and reduces) or (Kind.OPAQUE in kinds and len(nodes) > 1):
        return False
    return len({(n.inputs[0].shape, n.attrs["axes"]) for n in reduces}) <= 1


@dataclass(frozen=True)
class Implementation:
    """One way to compute regions.

    takes: could it compute this region? Cheap; `lower` refuses with a reason.
    admits: the limit on members during growth. Monotone: refused with some, refused with more; or
        at least such that every region that `takes` wants is reached through admitted ones.
    primitives, contractions: limits of the same sort (kernels/identify.py).
    variants: the parameters under which a region is offered; `candidate` has none of its own.
    rival: offered beside others. Otherwise the first of the list that lowers a region is the only
        one that is not a rival.
    efficiency: the share of peak arithmetic that it reaches where memory does not limit it.
    blocks: can it read and write channels in blocks?
    library: what has to be on the machine for it (a name of `targets/cpu/libraries.py`).
    saving, error, extra_bytes, opened_bytes: what `Candidate` says of them, from a candidate with
        its parameters.
    """

    name: str
    lower: Callable[[Candidate, Machine], Kernel | No]
    takes: Callable[[Region], bool]
    efficiency: float
    admits: Callable[[Sequence[Node]], bool] = one_anchor
    variants: Callable[[Candidate, Machine], Iterable[Params]] = plain
    rival: bool = False
    blocks: bool = False
    library: str | None = None
    saving: Callable[[Candidate], float] = lambda candidate: 1.0
    error: Callable[[Candidate], float] = lambda candidate: 0.0
    extra_bytes: Callable[[Candidate], int] = lambda candidate: 0
    opened_bytes: Callable[[Candidate], int] = lambda candidate: 0
    primitives: int = 8
    contractions: int = 1

    def reaches(self, nodes: Sequence[Node], weighty: frozenset[Node]) -> bool:
        """Are these members within all its limits?"""
        heavy = sum(n in weighty for n in nodes)
        linear = sum(kind_in_kernel(n) is Kind.LINEAR for n in nodes)
        return heavy <= self.primitives and linear <= self.contractions and self.admits(nodes)
