"""Regions around one window primitive: a convolution or a pool, what stands before and after it.

    y = epilogue(slide(prologue(inputs)))

The slide is a two-dimensional problem on a padded input of n images, c channels, h x w;
one-dimensional data lies along h or along w. Everything speaks of a point (n, m, h, w) of the
result, m the output channel. The epilogue is an expression on the accumulator at that point, stored
where the point ends up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fissile.ir.graph import Node, Value
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate
from fissile.kernels.statistics import statistics_of
from fissile.targets.cpu.impls.ahead import Places, places
from fissile.targets.cpu.impls.writer import Writer, range_of, strides_of
from fissile.tiles.expr import Builder, Expr, Illegal, Leaf, Point, Register, forward, operations
from fissile.tiles.index import Index, Var, dot, floordiv, mod, var
from fissile.tiles.lanes import fits_lanes
from fissile.tiles.nest import Decided, Env, nest
from fissile.tiles.place import place_of
from fissile.tiles.tree import Do, If, Store, Tree

CHANNELS, COLUMNS = "channels", "columns"  # what the lanes of a vector run over


@dataclass(frozen=True)
class Slide:
    """Extents of the window primitive `node`.

    Input n, c, h, w; output m, oh, ow; kernel, strides and dilations along h and w. The input's
    place (h, w) is (h step_h, w step_w) of the node's operand. Where channels lie in blocks, each
    of the `blocks` of an image may count as an image of its own, n and c accordingly."""

    node: Node
    lanes: str
    n: int
    c: int
    h: int
    w: int
    m: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    groups: int
    step_h: int = 1
    step_w: int = 1
    blocks: int = 1

    @property
    def x(self) -> Value:
        return self.node.inputs[0]

    @property
    def reach_h(self) -> int:
        """Input rows below one output row."""
        return (self.kh - 1) * self.dh + 1

    @property
    def taps(self) -> int:
        return self.kh * self.kw

    @property
    def dense(self) -> Slide:
        """The same without the rows and columns that no window reads: one tap has no stride."""
        s = self
        if s.kh == 1:
            s = replace(s, h=s.oh, sh=1, step_h=s.sh * s.step_h)
        return replace(s, w=s.ow, sw=1, step_w=s.sw * s.step_w) if s.kw == 1 else s

    def input_point(self, n: Index, c: Index, h: Index, w: Index) -> Point:
        """The index into the operand."""
        return self.point(n, c, h * self.step_h, w * self.step_w)

    def in_blocks(self, size: int) -> Slide:
        """The same for windows that stay in their channel, one block of `size` channels an image.
        Raises Illegal."""
        if self.c % size or self.c != self.m:
            raise Illegal(f"{self.c} channels are no blocks of {size}")
        count = self.c // size
        return replace(self, n=self.n * count, c=size, m=size, groups=size, blocks=count)

    def point(self, n: Index, m: Index, h: Index, w: Index) -> Point:
        """The index into the result."""
        if self.blocks > 1:
            n, m = floordiv(n, self.blocks), mod(n, self.blocks) * self.m + m
        if self.x.rank == 4:
            return (n, m, h, w)
        return (n, m, h if self.lanes == CHANNELS else w)

    def axes(self) -> tuple[int, int | None, int | None]:
        """Where c, h and w stand among the axes of the operand; None for one that is not there."""
        if self.x.rank == 4:
            return 1, 2, 3
        return (1, 2, None) if self.lanes == CHANNELS else (1, None, 2)


def find(candidate: Candidate, prims: Sequence[str]) -> Node:
    """The only node of the region among these primitives. Raises Illegal."""
    found = [n for n in candidate.region.nodes if n.prim in prims]
    if len(found) != 1:
        raise Illegal(f"{len(found)} of {' and '.join(prims)} in the region, not one")
    (node,) = found
    x = node.inputs[0]
    if x.type.dtype is not F32:
        raise Illegal(f"{node.prim} of {x.type}: only f32 is here")
    if x.rank not in (3, 4):
        raise Illegal(f"{node.prim} over {x.rank - 2} spatial axes: one or two are here")
    if not node.value.type.numel or not x.type.numel:
        raise Illegal("the result is empty")
    return node


def lanes_of(candidate: Candidate, node: Node) -> str:
    """Channels or columns, whichever is innermost in the first given token; `params` may ask."""
    if asked := candidate.param.get("lanes"):
        return asked
    names = [Var(f"a{k}", 0, extent - 1) for k, extent in enumerate(node.value.shape)]
    points = forward(candidate.region, node.value, tuple(var(v) for v in names))
    token = candidate.gives[0]
    if token.value not in points:
        raise _not_one_to_one(node)
    if token.layout.tile:
        if points[token.value][:2] != (var(names[0]), var(names[1])):
            raise Illegal("the channels of the result lie in no blocks")
        return CHANNELS
    place = address(points[token.value], strides_of(token))
    if names[1].extent > 1 and place.coefficient(names[1]) == 1:
        return CHANNELS
    if names[-1].extent == 1 or place.coefficient(names[-1]) == 1:
        return COLUMNS
    raise Illegal("neither the channels nor the columns of the output are innermost")


def block_size(candidate: Candidate) -> int:
    """The channels of a block of tokens, else 0. Raises Illegal where sizes differ."""
    sizes = {t.layout.tile for t in (*candidate.needs, *candidate.gives)} - {()}
    if not sizes:
        return 0
    if len(sizes) > 1 or len(tile := sizes.pop()) != 1 or tile[0][0] != 1:
        raise Illegal("tensors in different blocks")
    return tile[0][1]


def _not_one_to_one(node: Node) -> Illegal:
    return Illegal(f"an output is not one value for each of {node.prim}")


def slide(node: Node, lanes: str, kernel: Sequence[int], m: int, groups: int) -> Slide:
    """`kernel` holds the spatial extents of the window."""
    x, y, a = node.inputs[0].shape, node.value.shape, node.attrs

    def pair(values: Sequence[int]) -> tuple[int, int]:
        if len(values) == 2:
            return values[0], values[1]
        return (values[0], 1) if lanes == CHANNELS else (1, values[0])

    spatial = (pair(v) for v in (y[2:], kernel, a["strides"], a["dilations"]))
    return Slide(
        node, lanes, x[0], x[1], *pair(x[2:]), m, *(e for p in spatial for e in p), groups=groups
    )


def address(point: Point, strides: Sequence[int]) -> Index:
    return dot(point, strides)


@dataclass(frozen=True)
class Epilogue:
    """C++ that ends one vector: it uses `l`, the accumulator `a` and the variables n, m, h, w.
    `stored`: pointers and addresses, in h and w among others, that it stores to. `far`: what to ask
    for ahead."""

    lines: list[str]
    operations: float
    stored: tuple[tuple[str, Index], ...] = ()
    far: Places = field(default_factory=dict)


def epilogue(candidate: Candidate, writer: Writer, s: Slide) -> Epilogue:
    """Raises Illegal where an output is not computed from the accumulator at its own point, or
    cannot be by lanes."""
    m, w = Var("m", 0, s.m - 1), Var("w", 0, s.ow - 1)
    if s.lanes != CHANNELS:
        return _epilogue(candidate, writer, s, Lanes(w, var(m), w, []))
    size = block_size(candidate)
    try:
        return _epilogue(candidate, writer, s, Lanes(m, var(m), w, []))
    except Illegal:
        if not size or s.m <= size or s.m % size:
            raise
    # a vector is one block of channels: its number, and the lane within
    lane, block = Var("lane", 0, size - 1), Var("mb", 0, s.m // size - 1)
    head = [f"const int64_t mb = m / {size}, lane = 0;"]
    return _epilogue(candidate, writer, s, Lanes(lane, var(block) * size + var(lane), w, head))


@dataclass(frozen=True)
class Lanes:
    """What the lanes run over, the channel and column as functions of it, and lines that declare
    its parts."""

    lane: Var
    channel: Index
    w: Var
    head: list[str]


def _epilogue(candidate: Candidate, writer: Writer, s: Slide, along: Lanes) -> Epilogue:
    n, h = Var("n", 0, s.n - 1), Var("h", 0, s.oh - 1)
    here = s.point(var(n), along.channel, var(h), var(along.w))
    points = forward(candidate.region, s.node.value, here)
    leaves = {**writer.leaves(), s.node.value: _accumulator(here)}
    given = [(i, t) for i, t in enumerate(candidate.gives) if t.value in points]
    if len(given) < len(candidate.gives) and statistics_of(candidate.region) is None:
        raise _not_one_to_one(s.node)

    def make(env: Env, decided: Decided) -> list[Store]:
        builder = Builder(leaves, decided)
        return [
            Store(f"y{i}", place_of(t, at := points[t.value]), builder.at(t.value, at))
            for i, t in given
        ]

    trees = nest([], make, lanes=False, outer=along.lane)
    stores = _stores(trees)
    if (asked := range_of(candidate)) is not None:
        for _, t in given:
            row = var(n) * s.oh + var(h)
            asked.check(t, address(points[t.value], strides_of(t)), row, s.n * s.oh)
    if not fits_lanes(stores, along.lane):
        raise Illegal(f"the epilogue cannot run with lanes along the {s.lanes}")
    lines = [*along.head, *writer.printer.trees(trees, along.lane, indent=0)]
    stored = tuple((f"y{i}", place_of(t, points[t.value])) for i, t in given if not t.layout.tile)
    far = places(candidate, stores, (h, along.w)) if not along.head else {}
    return Epilogue(lines, sum(operations(st.value) for st in stores), stored, far)


def _accumulator(here: Point) -> Leaf:
    def leaf(point: Point) -> Expr:
        if point != here:
            raise Illegal("the epilogue reads the result at another point than it writes")
        return Register("a", F32, lanes=True)

    return leaf


def _stores(trees: Sequence[Tree]) -> list[Store]:
    found: list[Store] = []
    for tree in trees:
        if isinstance(tree, Do):
            found += [s for s in tree.statements if isinstance(s, Store)]
        elif isinstance(tree, If):
            found += [*_stores(tree.less), *_stores(tree.other)]
    return found
