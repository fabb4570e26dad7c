"""Bands: the input rows that a block of output rows needs, read in place or computed into scratch.

    band[i - sh h0] = prologue(inputs)[i]     for sh h0 <= i < sh (h1 - 1) + reach

A tile of a kernel is (split of the channels, image, band). Rows are named by their place i in the
padded input, so a pad at the top is one comparison for each row, and pads at the sides split the
loops when the code is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.anchor import CHANNELS, Slide
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.writer import Writer, range_of, strides_of
from fissile.tiles.expr import Builder, Illegal
from fissile.tiles.index import Index, Var, var
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import For, If, Store, Tree

LINE, SETS, WAYS = 16, 64, 8  # floats in a cache line; sets and ways of a first cache


@dataclass(frozen=True)
class Tiling:
    """Tiles of a kernel: splits (of channels, outermost) x images x bands of `rows` output rows; in
    a stage of a chain, single rows, up to `rows` of one image at once."""

    images: int
    oh: int
    rows: int
    splits: int = 1
    ranged: bool = False

    @property
    def bands(self) -> int:
        return -(-self.oh // self.rows)

    @property
    def count(self) -> int:
        return self.images * self.oh if self.ranged else self.splits * self.images * self.bands

    @property
    def is_even(self) -> bool:
        """Every band has `rows` rows."""
        return self.oh % self.rows == 0 and not self.ranged

    def lines(self) -> list[str]:
        """From t, or begin and end, to split, n, h0 and h1."""
        if self.ranged:
            image = f"n = begin / {self.oh}, " if self.images > 1 else ""
            first = f"begin % {self.oh}" if self.images > 1 else "begin"
            return [f"const int64_t {image}h0 = {first}, h1 = h0 + (end - begin);"]
        image = "t" if self.bands == 1 else f"t / {self.bands}"
        if self.splits > 1:
            image += f" % {self.images}"
        band = "t" if self.splits * self.images == 1 else f"(t % {self.bands})"
        h0 = plus((self.rows, band)) if self.bands > 1 else "0"
        last = plus("h0", self.rows) if self.bands > 1 else str(self.oh)
        if not self.is_even:
            last = f"{last} < {self.oh} ? {last} : {self.oh}"
        split = "t" if self.images * self.bands == 1 else f"t / {self.images * self.bands}"
        names = [f"split = {split}"] if self.splits > 1 else []
        names += [f"n = {image}"] if self.images > 1 else []
        return [f"const int64_t {', '.join([*names, f'h0 = {h0}', f'h1 = {last}'])};"]


def ranged(candidate: Candidate, s: Slide) -> Tiling | None:
    """The tiling of a stage of a chain. Raises Illegal where its rows are others."""
    if (asked := range_of(candidate)) is None:
        return None
    if s.lanes != CHANNELS or asked.count != s.n * s.oh:
        raise Illegal("rows of a map are computed with its channels innermost")
    return Tiling(s.n, s.oh, asked.most, ranged=True)


@dataclass(frozen=True)
class Input:
    """Where a tile reads: `lines` declare `in`, column 0 of the first row of its band. Strides in
    elements between rows, columns and channels; with lanes over channels, between blocks of
    `block` channels where these are not neighbours."""

    lines: list[str]
    row: int
    pixel: int
    plane: int
    block: int = 0


@dataclass(frozen=True)
class Steps:
    """Strides in elements of a feature map between images, rows, columns and channels; with lanes
    over channels, `plane` is 1 or the distance between blocks of `block` channels."""

    image: int
    row: int
    pixel: int
    plane: int
    block: int = 0


def steps_of(token: Token, s: Slide) -> Steps | None:
    """None where the lanes do not run over neighbours."""
    c, h, w = s.axes()
    shape = token.value.shape
    if token.layout.tile:
        ((_, size),) = token.layout.tile
        if s.lanes != CHANNELS or len(shape) != 4:
            return None
        plane = shape[2] * shape[3] * size
        if s.c == size:  # one block an image
            return Steps(plane, shape[3] * size, size, 1)
        image = plane * -(-shape[1] // size)
        return Steps(image, shape[3] * size, size, plane, size)
    if s.blocks > 1:
        return None
    strides, lane = strides_of(token), c if s.lanes == CHANNELS else w
    if lane is not None and shape[lane] > 1 and strides[lane] != 1:
        return None
    plane, row, pixel = (0 if a is None else strides[a] for a in (c, h, w))
    return Steps(strides[0], row, pixel, plane)


def whole(
    candidate: Candidate,
    writer: Writer,
    s: Slide,
    rows: int,
    slack: int = 0,
    tile: tuple[int, int] = (1, 1),
) -> Input:
    """All channels of a band. Vectors may read `slack` elements behind the last one. A `tile` of
    (py, px) pixels is read at once, channel by channel, so its pixels must not meet in few sets of
    the cache: pixels are moved apart where they would."""
    found = _in_place(candidate, s, slack)
    if found is not None and not _collides(s, tile, found.row, found.pixel):
        return found
    band_rows = (rows - 1) * s.sh + s.reach_h
    if s.lanes == CHANNELS:
        sizes = range(s.c, s.c + 5 * LINE, LINE)
        pixel = next((c for c in sizes if not _collides(s, tile, c * s.w, c)), s.c)
        row, plane, size = s.w * pixel, 1, band_rows * s.w * pixel
    else:
        row, pixel, plane, size = s.w, 1, band_rows * s.w, band_rows * s.w * s.c
    writer.local("band", size + slack)
    fill = _fill(candidate, writer, s, row, pixel, plane, var(loop("c", s.c)))
    return Input([*fill, "const float* in = band;"], row, pixel, plane)


def plane_of(candidate: Candidate, writer: Writer, s: Slide, rows: int, slack: int) -> Input:
    """The one channel `m` of a band, rows contiguous."""
    if (found := _in_place(candidate, s, slack)) is not None:
        start = plus(found.lines[0].rstrip(";"), (found.plane, "m")) + ";"
        return Input([start], found.row, 1, 0)
    writer.local("band", ((rows - 1) * s.sh + s.reach_h) * s.w + slack)
    fill = _fill(candidate, writer, s, s.w, 1, 0, var(Var("m", 0, s.c - 1)))
    return Input([*fill, "const float* in = band;"], s.w, 1, 0)


def _in_place(candidate: Candidate, s: Slide, slack: int) -> Input | None:
    """The input itself, where it needs no prologue and lies as the lanes want it."""
    token = next((t for t in candidate.needs if t.value is s.x), None)
    if token is None or slack:
        return None
    steps = steps_of(token, s)
    if steps is None or (steps.block and (s.taps > 1 or s.groups > 1)):
        return None
    row, pixel = steps.row * s.step_h, steps.pixel * s.step_w
    pointer = f"x{candidate.needs.index(token)}"
    image = (steps.image if s.n > 1 else 0, "n")
    start = plus(f"const float* in = {pointer}", image, (row * s.sh, "h0")) + ";"
    return Input([start], row, pixel, steps.plane, steps.block)


def _collides(s: Slide, tile: tuple[int, int], row: int, pixel: int) -> bool:
    """Do so many pixels fall into one set that those before them leave the cache?"""
    if s.lanes != CHANNELS:
        return False
    places = [y * s.sh * row + x * s.sw * pixel for y in range(tile[0]) for x in range(tile[1])]
    return max(Counter(p // LINE % SETS for p in places).values()) > WAYS - 3


def _fill(
    candidate: Candidate, writer: Writer, s: Slide, row: int, pixel: int, plane: int, c: Index
) -> list[str]:
    """Loops that compute the prologue into `band`; of channel c alone where `plane` is 0."""
    leaves = writer.leaves()
    over_c, over_w = loop("c", s.c), loop("w", s.w)
    loops = [over_w, over_c] if s.lanes == CHANNELS else [over_c, over_w]

    def of_row(i: Var) -> tuple[Tree, ...]:
        def make(env: Env, decided: Decided) -> Sequence[Store]:
            channel, w = env.get("c", c), env["w"]
            point = s.input_point(var(Var("n", 0, s.n - 1)), channel, var(i), w)
            value = Builder(leaves, decided).at(s.x, point)
            return [Store("line", w * pixel + channel * plane, value)]

        return nest(loops if plane else [over_w], make)

    start = plus((s.sh, "h0"))
    line = plus("band", (row, f"(i - {start})"))
    stop = plus((s.sh, "h1"), s.reach_h - s.sh)
    lines = [f"int64_t i = {start};", f"const int64_t stop = {stop};"]
    for hi, trees in _pieces(of_row, 0, s.h - 1):
        here = f"i < stop && i < {hi + 1}" if hi < s.h - 1 else "i < stop"
        body = [f"float* line = {line};", *writer.printer.trees(trees, indent=0)]
        lines += block(f"for (; {here}; ++i) {{", body)
    return block("{", lines)


def _pieces(
    of_row: Callable[[Var], tuple[Tree, ...]], lo: int, hi: int
) -> list[tuple[int, tuple[Tree, ...]]]:
    """(last row, lines) of ranges of rows that are computed in one way: no row asks where it is.

    A branch within the loop over rows would be as fast, but GCC 12 vectorises such loops wrongly
    with -fwrapv: the mask of the first vector serves for the whole group of stores."""
    trees = of_row(Var("i", lo, hi))
    for question in _branches(trees):
        ((_, k),) = question.index.terms
        rest = question.bound - question.index.constant  # k i < rest
        cut = -(-rest // k) if k > 0 else rest // k + 1
        return [*_pieces(of_row, lo, cut - 1), *_pieces(of_row, cut, hi)]
    return [(hi, trees)]


def _branches(trees: Sequence[Tree]) -> list[If]:
    """Branches that ask for the row alone."""
    found: list[If] = []
    for tree in trees:
        if isinstance(tree, If):
            found += [tree] if {v.name for v in tree.index.vars} == {"i"} else []
            found += [*_branches(tree.less), *_branches(tree.other)]
        elif isinstance(tree, For):
            found += _branches(tree.body)
    return [q for q in found if q.index.is_affine]
