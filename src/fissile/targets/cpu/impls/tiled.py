"""What kernels of register tiles share: blocks of lanes, the walk over accumulators, the frame."""

from __future__ import annotations

from collections.abc import Sequence

from fissile.kernels.candidate import Kernel
from fissile.targets.cpu.impls.anchor import Epilogue, Slide
from fissile.targets.cpu.impls.bands import Tiling
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.shape import LaneSplit, cover
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine

UNROLLED = 12.0  # operations up to which an epilogue is repeated for every accumulator


def blocks(function: str, split: LaneSplit, index: str, arguments: str) -> list[str]:
    """Call `function(Int<vectors>, Int<lanes>, arguments)` for block `index` of a lane axis."""
    calls = [f"{function}(Int<{nv}>(), Int<{n}>(), {arguments});" for _, nv, n in split.kinds]
    if len(calls) == 1:
        return calls
    return [f"if ({index} < {split.full}) {calls[0]}", f"else {calls[1]}"]


def each_vector(lanes: str, end: Epilogue, where: Sequence[str]) -> list[str]:
    """The epilogue of every accumulator c[p][v]; `where` declares h, w and m from p and v."""
    unroll = "true" if end.operations <= UNROLLED else "false"
    head = f"each_vector<{lanes}, {unroll}>(c, [&](auto l, vf a, int p, int v) {{"
    return block(head, [*where, *end.lines], "});")


COLUMNS_OF = "auto vectors, auto width, auto rows, int64_t top, int64_t left"


def column_blocks(s: Slide, split: LaneSplit, tiling: Tiling, py: int) -> list[str]:
    """Call `columns(COLUMNS_OF)` for the rows of a band, up to `py` at once, and their columns."""

    def across(rows: str, top: str) -> list[str]:
        calls = blocks("columns", split, f"left / {split.width}", f"{rows}, {top}, left")
        return block(f"for (int64_t left = 0; left < {s.ow}; left += {split.width}) {{", calls)

    if py == 1:
        return block("for (int64_t h = h0; h < h1; ++h) {", across("Int<1>()", "h"))
    py = cover(tiling.rows, py)[0][1]
    head = f"for_rows<{py}, {tiling.rows}>([&](auto py, int64_t row) {{"
    return block(head, across("py", plus("h0", "row")), "});")


def share_of(name: str, count: int, tiling: Tiling) -> str:
    """The head of a loop over the part of 0 .. count - 1 that belongs to the tile's split."""
    start, stop = "0", str(count)
    if tiling.splits > 1:
        share = count // tiling.splits
        start, stop = f"split * {share}", f"(split + 1) * {share}"
    return f"for (int64_t {name} = {start}; {name} < {stop}; ++{name})"


def done(writer: Writer, machine: Machine, tiling: Tiling, body: Sequence[str]) -> Kernel:
    """The kernel whose tile is `body` after the variables of the tiling."""
    fits = f'static_assert(VL == {machine.vl}, "written for another vector length");'
    writer.scratch_lines.insert(0, fits)
    lines = [*tiling.lines(), *body]
    return writer.kernel(["    " + line for line in lines], tiling.count)
