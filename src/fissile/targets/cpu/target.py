"""The CPU: which candidates exist for a region, and the kernels they lower to.

Every region is tried in channels-first and in channels-last throughout, and mixed where it touches
an input or output of the graph, which are row-major, or multiplies matrices that may be transposed.
What no implementation takes is refused with a reason; a primitive that nothing takes at all is the
caller's error to report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from fissile.cost.model import SCALAR
from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Layout, Token, row_major
from fissile.kernels.candidate import EMPTY, Candidate, Kernel, No
from fissile.kernels.identify import Limits, weighty
from fissile.kernels.region import Region
from fissile.targets.cpu.blocks import is_depthwise
from fissile.targets.cpu.implementations import BY_NAME, IMPLEMENTATIONS
from fissile.targets.cpu.impls import maps
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.layouts import layouts
from fissile.targets.cpu.libraries import found
from fissile.targets.cpu.machine import Machine, this_machine
from fissile.targets.cpu.matrices import turnable
from fissile.tiles.nest import probing


def _version() -> str:
    """Of the generated code: part of the key of every stored time, so that none outlives its
    kernel."""
    package = Path(__file__).parents[2]
    folders = (package / "targets" / "cpu" / "impls", package / "tiles")
    files = [p for folder in folders for p in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


VERSION = _version()
ORDINARY = 2e-5  # what the default accuracy allows of the output's scale
_MOVES = ("transpose", "reshape", "slice", "broadcast")


class Cpu:
    """Candidates and kernels for one graph on one machine."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine | None = None,
        threads: int | None = None,
        without: Collection[str] = (),
        error: float = ORDINARY,
        blocks: bool = False,
        like: Cpu | None = None,
    ):
        """`threads`: as many as the model will run with; None: one per processor. `without`: names
        of implementations that are not offered, and of layouts. `error`: nothing that adds more
        to the error of the definition is offered. `blocks`: may channels lie in blocks? `like`:
        what is known of kernels, for another spelling of the same graph."""
        self.graph = graph
        machine = machine or this_machine()
        self.machine = replace(machine, threads=threads) if threads else machine
        self.offered = tuple(
            i for i in IMPLEMENTATIONS
            if i.name not in without and (not i.library or found(i.library))
        )  # fmt: skip
        self.error = error
        self.layouts: Mapping[Value, tuple[Layout, ...]] = layouts(
            graph, without, self.machine.vl if blocks else 0
        )
        self.kernels: dict[str, Kernel | No] = like.kernels if like else {}
        self.legal: dict[str, bool] = like.legal if like else {}
        self.offsets: dict[str, int | No] = like.offsets if like else {}
        self.known: dict[str, tuple[Candidate, ...]] = like.known if like else {}
        self.originals: Mapping[str, Candidate] = {}
        self._matrices = turnable(graph)
        self._borders = {*graph.inputs, *graph.outputs}
        self._weighty = weighty(graph.primitives)

    # -- regions

    @property
    def limits(self) -> Limits:
        """How far regions grow: as far as any implementation lets them."""
        return Limits(
            primitives=max(i.primitives for i in self.offered),
            contractions=max(i.contractions for i in self.offered),
            stages=4,
            statistics=True,
        )

    def admissible(self, nodes: Sequence[Node]) -> bool:
        """May some implementation compute these together? Monotone, but for what one of them
        reaches upwards from its last member (`impls/heads.py`)."""
        return any(i.reaches(nodes, self._weighty) for i in self.offered)

    @property
    def efficiency(self) -> Mapping[str, float]:
        """The share of peak arithmetic that each implementation reaches, by its name."""
        return {i.name: i.efficiency for i in self.offered}

    @property
    def last_resorts(self) -> frozenset[str]:
        """Implementations of scalar code."""
        return frozenset(i.name for i in self.offered if i.efficiency < SCALAR)

    # -- candidates

    def adapters(self) -> Iterator[Candidate]:
        """Every change of layout of every value that has more than one. Blocks of channels come
        from channels-last and go back there: nothing else meets them."""
        for value, options in self.layouts.items():
            if value.is_constant:
                continue
            for a, b in product(options, options):
                if a != b and not ((a.tile and b.is_row_major) or (b.tile and a.is_row_major)):
                    yield Candidate(EMPTY, "adapter", (), (Token(value, a),), (Token(value, b),))

    def implementations(self, region: Region) -> Iterator[Candidate]:
        """What can compute a region. Equal regions in equal layouts are looked at once."""
        for needs, gives in self._assignments(region):
            key = Candidate(region, "any", (), needs, gives).key
            if key in self.known:
                yield from (c.elsewhere(region, needs, gives) for c in self.known[key])
                continue
            alias = self._alias(region, needs, gives)
            found = [alias] if alias else self._computing(region, needs, gives)
            self.known[key] = tuple(found)
            yield from self.known[key]

    def _assignments(self, region: Region) -> Iterator[tuple[tuple[Token, ...], tuple[Token, ...]]]:
        values = (*region.tensors, *region.outputs)
        if all(len(self.layouts[v]) == 1 for v in values):
            alone = (
                tuple(self._token(v, 0) for v in vs) for vs in (region.tensors, region.outputs)
            )
            yield next(alone), next(alone)
            return
        seen: set[tuple[tuple[Token, ...], tuple[Token, ...]]] = set()
        for a, b in self._orders(region, values):
            needs = tuple(
                Token(v, row_major(v.rank)) if v in self.graph.inputs else self._token(v, a)
                for v in region.tensors
            )
            tokens = needs, tuple(self._token(v, b) for v in region.outputs)
            if tokens not in seen:
                seen.add(tokens)
                yield tokens

    def _orders(self, region: Region, values: Sequence[Value]) -> Iterator[tuple[int, int]]:
        """What the needed and the given tokens lie like: 0 first, 1 last (or by columns), 2 in
        blocks."""
        yield from ((0, 0), (1, 1))
        multiplies = any(n.prim == "contract" for n in region.nodes)
        if (
            any(v in self._borders for v in values)
            or _only_moves(region)
            or (multiplies and any(v in self._matrices for v in values))
        ):
            yield from ((0, 1), (1, 0))
        if any(self.layouts[v][-1].tile for v in values):
            yield 2, 2
            if multiplies or any(n.prim == "conv" and not is_depthwise(n) for n in region.nodes):
                yield from ((1, 2), (2, 1))

    def _token(self, v: Value, order: int) -> Token:
        options = self.layouts[v]
        plain = options[:-1] if options[-1].tile else options
        return Token(v, options[-1] if order == 2 else plain[-order])

    def _alias(
        self, region: Region, needs: tuple[Token, ...], gives: tuple[Token, ...]
    ) -> Candidate | None:
        if len(needs) != 1 or len(gives) != 1 or region.parameters or not _only_moves(region):
            return None
        probe = Candidate(region, "map", (), needs, gives)
        if probe.key not in self.offsets:
            self.offsets[probe.key] = maps.alias_offset(probe)
        offset = self.offsets[probe.key]
        if isinstance(offset, No):
            return None
        return Candidate(region, "alias", (("offset_bytes", offset),), needs, gives)

    def _computing(
        self, region: Region, needs: tuple[Token, ...], gives: tuple[Token, ...]
    ) -> Iterator[Candidate]:
        """All rivals, and the first of the others; nobody vies for what has no elements."""
        empty = any(not v.type.numel for n in region.nodes for v in (*n.inputs, *n.outputs))
        settled, tiled = False, any(t.layout.tile for t in (*needs, *gives))
        for impl in self.offered:
            refused = (empty if impl.rival else settled) or (tiled and not impl.blocks)
            if refused or not impl.takes(region):
                continue
            bare = Candidate(region, impl.name, (), needs, gives)
            for params in impl.variants(bare, self.machine):
                candidate = replace(bare, params=params)
                error = impl.error(candidate)
                if error > self.error or not self.is_legal(candidate):
                    continue
                settled = settled or not impl.rival
                yield replace(
                    candidate, saving=impl.saving(candidate), error=error,
                    extra_bytes=impl.extra_bytes(candidate),
                    opened_bytes=impl.opened_bytes(candidate),
                )  # fmt: skip

    # -- kernels

    def is_legal(self, candidate: Candidate) -> bool:
        """Is there a kernel? Lowers as `kernel` does, but for the loops that cannot refuse."""
        key = candidate.key
        if key not in self.legal:
            with probing():
                self.legal[key] = bool(self._lower(candidate))
        return self.legal[key]

    def kernel(self, candidate: Candidate) -> Kernel | No:
        """The kernel of a candidate that is no alias; equal candidates share it. `originals` have
        tokens of values of their own regions, where candidates are named by classes."""
        key = candidate.key
        if key not in self.kernels:
            self.kernels[key] = self._lower(self.originals.get(key, candidate))
        return self.kernels[key]

    def _lower(self, candidate: Candidate) -> Kernel | No:
        if all(not t.value.type.numel for t in candidate.gives):
            return Writer(candidate).kernel([], tiles=0)
        impl = BY_NAME["map" if candidate.is_adapter else candidate.impl]
        return impl.lower(candidate, self.machine)


def _only_moves(region: Region) -> bool:
    return all(n.prim in _MOVES for n in region.nodes)
