"""A mean and the squares of what values differ by from it, in one pass over a long row.

    sum (v - mean)^2 = sum over blocks c of  q_c + t_c (2 s_c + n_c t_c),   t_c = b_c - mean,

with s_c and q_c the sums of d = v - b_c and of d^2 over the n_c values of block c, for any base
b_c. The base is the mean of the block before, m_{c-1}; the first block is read once more for its
own. What that costs: with S the sum that is asked for and m the mean,

    sum n_c (m_c - b_c)^2 <= 2 sum n_c ((m_c - m)^2 + (m_{c-1} - m)^2) <= 4 S,
    sum n_c (b_c - m)^2 <= 2 S,

as only the last block is smaller than others. So the q_c add up to at most 5 S, their corrections
to at most 8 S, and rounding errors, which are relative to these, are a small multiple of those of
a second pass, whatever the data while 8 S is a number: a mean far larger than what values differ by
loses nothing, nor does a step in the middle of a row. The mean itself is summed as without squares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fissile.ir.graph import Node
from fissile.ir.types import F32
from fissile.targets.cpu.impls.sums import BLOCK, Sums, cut, declared, joined, renamed
from fissile.tiles.change import rewrite
from fissile.tiles.expr import Expr, Literal, Op, Register
from fissile.tiles.index import Index, const, substitute, text, var
from fissile.tiles.tree import Accumulate, Do, For, Lanes, Raw, Scope, Statement, Tree


def mean_below(n: Node, members: Collection[Node]) -> Node | None:
    """The member that gives mean(v) where `n` adds up (v - mean(v))^2 over the same axes."""
    square = n.inputs[0].node
    if n.prim not in ("reduce_sum", "reduce_mean") or square.prim != "mul":
        return None
    apart = square.inputs[0].node
    if square.inputs[0] is not square.inputs[1] or apart.prim != "sub":
        return None
    v, mean = apart.inputs
    if not {square, apart, mean.node} <= set(members) or mean.node.prim != "reduce_mean":
        return None
    same = mean.node.inputs[0] is v and mean.node.attrs["axes"] == n.attrs["axes"]
    return mean.node if same and n.value.type.dtype is F32 and v.type.dtype is F32 else None


@dataclass(frozen=True)
class Squares:
    """Registers: `total` of the values and `register` of their squares, of rows of `length`."""

    total: str
    register: str
    length: int

    def added(self, value: Expr) -> list[Statement]:
        """One more value; by fma, as additions alone would wait for each other's units."""
        base = Register(f"{self.register}c", F32, lanes=False)
        apart = Op("sub", (value, base), (), F32)
        return [
            Accumulate(a, "sum", Op("mul", (apart, factor), (), F32))
            for a, factor in zip(self.registers, (Literal(1.0, F32), apart), strict=True)
        ]

    @property
    def registers(self) -> tuple[str, str]:
        """Sums of the differences and of their squares in a block."""
        return f"{self.register}s", f"{self.register}q"

    @property
    def opening(self) -> str:
        return f"Squares<{-(-self.length // BLOCK)}> {self.register}m;"

    def ended(self, block: Index) -> list[str]:
        """After a block, whose mean is the base of the next."""
        a, is_whole = self.register, bool(block.vars) or self.length % BLOCK == 0
        following = [f"{a}c = divide({self.total}p, {BLOCK}.0f);"] if is_whole else []
        return [f"{a}m.put({text(block)}, {a}c, {a}s, {a}q);", *following]

    def about(self, mean: str) -> str:
        """The sum, once the mean is known."""
        a, rest = self.register, (self.length - 1) % BLOCK + 1
        return f"const float {a} = {a}m.about({mean}, {BLOCK}.0f, {rest}.0f);"


def in_one_pass(
    tree: Lanes, first: Mapping[str, Lanes], sums: Sums, squares: Collection[Squares]
) -> list[Tree]:
    """`tree`, longer than a block, accumulates into `sums` and adds to `squares`; `first` are loops
    that only add up the values of each total."""
    found: list[Tree] = []
    for s in squares:
        found.append(Raw((f"float {s.register}c;", s.opening)))
        mean = Raw((f"{s.register}c = divide({s.total}, {BLOCK}.0f);",))
        found.append(Scope((replace(_first_block(first[s.total]), opens=True), mean)))
    found += [declared(a, *how) for a, how in sums.items()]
    for part in cut(tree, BLOCK):
        if isinstance(part, For):
            (lanes,) = part.body
            assert isinstance(lanes, Lanes)
            found.append(replace(part, body=_block(lanes, var(part.var), sums, squares)))
        else:
            assert isinstance(part, Lanes)
            last = const(tree.var.extent // BLOCK)
            found.append(Scope(_block(part, last, sums, squares)))
    return found


def _first_block(tree: Lanes) -> Lanes:
    whole, *_ = cut(tree, BLOCK)
    if isinstance(whole, Lanes):
        return whole
    (lanes,) = whole.body
    assert isinstance(lanes, Lanes)

    def start(i: Index) -> Index:
        return substitute(i, lambda v: const(0) if v == whole.var else None)

    body = tuple(Do(tuple(rewrite(t.statements, start))) for t in lanes.body if isinstance(t, Do))
    return replace(lanes, body=body)


def _block(
    lanes: Lanes, block: Index, sums: Sums, squares: Collection[Squares]
) -> tuple[Tree, ...]:
    """A block that is added up on its own."""
    own = {register for s in squares for register in s.registers}
    body = renamed(lanes.body, lambda a: a if a in own else f"{a}p")
    lines = [joined(a, op) for a, (op, _) in sums.items()]
    lines += [line for s in squares for line in s.ended(block)]
    return replace(lanes, body=body, opens=True), Raw(tuple(lines))
