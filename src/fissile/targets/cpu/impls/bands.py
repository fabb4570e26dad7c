"""Bands: the input rows that a block of output rows needs, read in place or computed into thread scratch.

    band[i - h0 * sh] = prologue(inputs)[i]     for h0 * sh <= i < (h1 - 1) * sh + reach

A tile of a kernel is (split of the channels, image, band). Rows are named by their place i in the padded input, so
a pad at the top is one comparison for each row, and pads at the sides split the loops when code is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.anchor import CHANNELS, Slide, block
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.tiles.expr import Builder
from fissile.tiles.index import Var, var
from fissile.tiles.nest import Decided, Env, Store, loop, nest


@dataclass(frozen=True)
class Tiling:
    """Tiles of a kernel: splits (of channels, outermost) x images x bands of `rows` output rows."""

    images: int
    oh: int
    rows: int
    splits: int = 1

    @property
    def bands(self) -> int:
        return -(-self.oh // self.rows)

    @property
    def count(self) -> int:
        return self.splits * self.images * self.bands

    @property
    def is_even(self) -> bool:
        """Every band has `rows` rows."""
        return self.oh % self.rows == 0

    def lines(self) -> list[str]:
        """From t to split, n, h0 and h1."""
        n, b, rows = self.images, self.bands, self.rows
        last = f"h0 + {rows}" if self.is_even else f"h0 + {rows} < {self.oh} ? h0 + {rows} : {self.oh}"
        image = "t" if b == 1 else f"t / {b}"
        parts = [f"const int64_t split = t / {n * b};"] if self.splits > 1 else []
        parts.append(f"const int64_t n = {image} % {n};" if n > 1 and self.splits > 1 else
                     f"const int64_t n = {image if n > 1 else 0};")  # fmt: skip
        parts.append(f"const int64_t h0 = {f't % {b} * {rows}' if b > 1 else 0}, h1 = {last};")
        return parts


@dataclass(frozen=True)
class Input:
    """Where a tile reads: `lines` declare `in`, the first row of the band (or, of one plane `m`), column 0.
    Strides in elements between rows, columns and channels."""

    lines: list[str]
    row: int
    pixel: int
    plane: int


def whole(
    candidate: Candidate, writer: Writer, s: Slide, rows: int, slack: int, tile: tuple[int, int] = (1, 1)
) -> Input:
    """All channels of a band. `slack`: how many elements behind the last one vectors may read. A `tile` of
    (py, px) output pixels is read at once, channel by channel: its pixels must not meet in few cache sets."""
    found = _in_place(candidate, s, slack)
    if found is not None and not _collides(s, tile, found.row, found.pixel):
        return found
    band_rows = (rows - 1) * s.sh + s.reach_h
    pixel = next((c for c in range(s.c, s.c + 80, 16) if not _collides(s, tile, c * s.w, c)), s.c)
    row, pixel, plane = (s.w * pixel, pixel, 1) if s.lanes == CHANNELS else (s.w, 1, band_rows * s.w)
    writer.local("band", band_rows * s.w * (pixel if s.lanes == CHANNELS else s.c) + slack)
    fill = _fill(candidate, writer, s, row, pixel, plane, var(loop("c", s.c)))
    return Input([*fill, "const float* in = band;"], row, pixel, plane)


def _collides(s: Slide, tile: tuple[int, int], row: int, pixel: int) -> bool:
    """Do more pixels fall into one set of a first cache than it holds? 64 sets of 8 lines of 64 bytes."""
    if s.lanes != CHANNELS:
        return False
    sets = Counter(
        (y * s.sh * row + x * s.sw * pixel) // 16 % 64 for y in range(tile[0]) for x in range(tile[1])
    )
    return max(sets.values()) > 5


def plane_of(candidate: Candidate, writer: Writer, s: Slide, rows: int, slack: int) -> Input:
    """The one channel `m` of a band, rows contiguous."""
    if (found := _in_place(candidate, s, slack)) is not None:
        return Input([found.lines[0].replace(";", f" + {found.plane} * m;")], found.row, 1, 0)
    writer.local("band", ((rows - 1) * s.sh + s.reach_h) * s.w + slack)
    fill = _fill(candidate, writer, s, s.w, 1, 0, var(Var("m", 0, s.c - 1)))
    return Input([*fill, "const float* in = band;"], s.w, 1, 0)


def _in_place(candidate: Candidate, s: Slide, slack: int) -> Input | None:
    """The input itself, where it needs no prologue and lies as the lanes want it."""
    token = next((t for t in candidate.needs if t.value is s.x), None)
    if token is None or slack:
        return None
    c, h, w = s.axes()
    strides, lane = strides_of(token), c if s.lanes == CHANNELS else w
    if lane is not None and s.x.shape[lane] > 1 and strides[lane] != 1:
        return None
    plane, row, pixel = (0 if a is None else strides[a] for a in (c, h, w))
    row, pixel = row * s.step_h, pixel * s.step_w
    start = f"const float* in = {_pointer(candidate, token)} + {strides[0]} * n + {row * s.sh} * h0;"
    return Input([start], row, pixel, plane)


def _pointer(candidate: Candidate, token: Token) -> str:
    return f"x{candidate.needs.index(token)}"


def _fill(candidate: Candidate, writer: Writer, s: Slide, row: int, pixel: int, plane: int, c) -> list[str]:
    """Loops that compute the prologue into `band`; without a stride between planes only channel m."""
    n, i = Var("n", 0, s.n - 1), Var("i", 0, s.h - 1)
    leaves = writer.leaves()

    def make(env: Env, decided: Decided) -> Sequence[Store]:
        channel = env.get("c", c)
        value = Builder(leaves, decided).at(s.x, s.input_point(var(n), channel, var(i), env["w"]))
        return [Store("line", env["w"] * pixel + channel * plane, value)]

    over_c, over_w = loop("c", s.c), loop("w", s.w)
    loops = [over_w] if not plane else [over_w, over_c] if s.lanes == CHANNELS else [over_c, over_w]
    body = list(writer.printer.trees(nest(loops, make), indent=0))
    first = "h0" if s.sh == 1 else f"h0 * {s.sh}"
    head = f"for (int64_t i = {first}; i < (h1 - 1) * {s.sh} + {s.reach_h}; ++i) {{"
    return block(head, [f"float* line = band + (i - {first}) * {row};", *body])
