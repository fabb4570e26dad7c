"""Problems that look like networks: primitives, convex regions, two layouts, adapters.

`random_problem` draws small layered graphs for brute force; `network` builds whole models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fissile.select import Column, Problem

LAUNCH = 3.0


@dataclass
class Primitives:
    """Primitive p makes value p + inputs; kinds: conv, matmul, ew, reduce, layout, input."""

    kinds: list[str] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)

    def add(self, kind: str, reads: tuple[int, ...], size: float, work: float = 0.0) -> int:
        self.kinds.append(kind)
        self.reads.append(reads)
        self.size.append(size)
        self.work.append(work)
        return len(self.kinds) - 1


def convex_regions(net: Primitives, limit: int, heavy: int, cap: int) -> Iterator[frozenset[int]]:
    """Connected convex sets of at most `limit` primitives with at most `heavy` contractions."""
    n = len(net.kinds)
    before, after = [0] * n, [0] * n
    readers: list[list[int]] = [[] for _ in range(n)]
    for q in range(n):
        for p in net.reads[q]:
            if net.kinds[p] != "input":
                before[q] |= before[p] | 1 << p
                readers[p].append(q)
    for p in reversed(range(n)):
        for q in readers[p]:
            after[p] |= after[q] | 1 << q
    for root in range(n):
        if net.kinds[root] == "input":
            continue
        yield from _grow(net, root, readers, before, after, limit, heavy, cap)


def _grow(net, root, readers, before, after, limit, heavy, cap):
    """Sets whose smallest member is `root`."""
    seen = {frozenset([root])}
    front = [frozenset([root])]
    for region in front:
        yield_it = _is_convex(region, before, after)
        if yield_it:
            yield region
        if len(region) == limit or len(front) > cap:
            continue
        for p in sorted(region):
            for q in (*net.reads[p], *readers[p]):
                grown = region | {q}
                if q <= root or net.kinds[q] == "input" or grown in seen:
                    continue
                if sum(net.kinds[r] in ("conv", "matmul") for r in grown) > heavy:
                    continue
                seen.add(grown)
                front.append(grown)


def _is_convex(region: frozenset[int], before: list[int], after: list[int]) -> bool:
    up = down = mask = 0
    for p in region:
        up, down, mask = up | before[p], down | after[p], mask | 1 << p
    return not up & down & ~mask


def problem_of(
    net: Primitives,
    outputs: tuple[int, ...],
    seed: int,
    limit: int = 8,
    heavy: int = 1,
    layouts: int = 2,
    cap: int = 400,
    noise: float = 0.3,
) -> Problem:
    """Columns with roofline-like costs; equal structures cost the same."""
    n = len(net.kinds)
    readers: list[list[int]] = [[] for _ in range(n)]
    for q in range(n):
        for p in net.reads[q]:
            readers[p].append(q)
    inputs = [p for p in range(n) if net.kinds[p] == "input"]
    columns: list[Column] = []
    for region in convex_regions(net, limit, heavy, cap):
        columns.extend(_kernels(net, region, readers, set(outputs), seed, layouts, noise))
    for v in range(n):
        for a in range(layouts):
            for b in range(layouts):
                if a != b:
                    cost = LAUNCH + 2.2 * net.size[v]
                    columns.append(
                        Column(
                            cost,
                            frozenset(),
                            frozenset([v * layouts + a]),
                            frozenset([v * layouts + b]),
                        )
                    )
    return Problem(
        columns=tuple(columns),
        outputs=tuple(v * layouts for v in outputs),
        free=frozenset(v * layouts for v in inputs),
        value_of=tuple(t // layouts for t in range(n * layouts)),
        producer=tuple(None if net.kinds[v] == "input" else v for v in range(n)),
        edges=tuple(
            (p, q, p)
            for q in range(n)
            for p in dict.fromkeys(net.reads[q])
            if net.kinds[p] != "input"
        ),
        live=_live(net, outputs),
    )


def _live(net: Primitives, outputs: tuple[int, ...]) -> frozenset[int]:
    live, asked = set(), list(outputs)
    for v in asked:
        if v not in live and net.kinds[v] != "input":
            live.add(v)
            asked.extend(net.reads[v])
    return frozenset(live)


def _kernels(net, region, readers, outputs, seed, layouts, noise) -> Iterator[Column]:
    order = sorted(region)
    border = sorted({v for p in order for v in net.reads[p]} - region)
    seen_outside = [p for p in order if p in outputs or not region.issuperset(readers[p])]
    choices = [tuple(seen_outside)]
    if len(seen_outside) > 1:
        choices += [(p,) for p in seen_outside if _derives(net, region, p)]
    shape = tuple((net.kinds[p], net.size[p], net.work[p]) for p in order)
    wires = tuple(order.index(v) if v in region else -1 for p in order for v in net.reads[p])
    kinds = {net.kinds[p] for p in order}
    for gives in choices:
        for a in range(layouts):
            for b in range(layouts):
                if a != b and not kinds & {"conv", "layout"}:
                    continue
                if a == b and kinds == {"layout"} and a:
                    continue
                structure = (seed, shape, wires, tuple(order.index(v) for v in gives), a, b)
                rng = random.Random(repr(structure))
                traffic = sum(net.size[v] for v in border) + sum(net.size[v] for v in gives)
                work = sum(
                    net.work[p] * (1.25 if a and net.kinds[p] == "matmul" else 1.0) for p in order
                )
                slow = 1.0 + 0.08 * max(0, len(order) - 4) + (0.15 if a != b else 0.0)
                cost = LAUNCH + max(traffic, work * slow) + 0.3 * min(traffic, work * slow)
                cost *= 1 + noise * (2 * rng.random() - 1)
                if kinds == {"layout"} and len(order) == 1 and a != b:
                    cost = 0.0
                yield Column(
                    round(cost, 3),
                    region,
                    frozenset(v * layouts + a for v in border),
                    frozenset(v * layouts + b for v in gives),
                )


def _derives(net, region, p) -> bool:
    """Does every member of the region lead to p?  Else the kernel would do work for nothing."""
    used, asked = set(), [p]
    for q in asked:
        if q not in used and q in region:
            used.add(q)
            asked.extend(net.reads[q])
    return used == set(region)


def conv_block(net: Primitives, x: int, size: float, work: float, act: int = 2) -> int:
    x = net.add("conv", (x,), size, work)
    x = net.add("ew", (x,), size, 0.02 * size)
    y = x
    for _ in range(act):
        y = net.add("ew", (y,), size, 0.05 * size)
    return net.add("ew", (x, y), size, 0.05 * size) if act > 1 else y


def softmax(net: Primitives, x: int, size: float) -> int:
    m = net.add("reduce", (x,), size / 32, 0.05 * size)
    d = net.add("ew", (x, m), size, 0.05 * size)
    e = net.add("ew", (d,), size, 0.2 * size)
    s = net.add("reduce", (e,), size / 32, 0.05 * size)
    return net.add("ew", (e, s), size, 0.05 * size)


def layer_norm(net: Primitives, x: int, size: float) -> int:
    m = net.add("reduce", (x,), size / 64, 0.05 * size)
    c = net.add("ew", (x, m), size, 0.05 * size)
    q = net.add("ew", (c,), size, 0.05 * size)
    v = net.add("reduce", (q,), size / 64, 0.05 * size)
    r = net.add("ew", (v,), size / 64, 0.01)
    y = net.add("ew", (c, r), size, 0.05 * size)
    y = net.add("ew", (y,), size, 0.05 * size)
    return net.add("ew", (y,), size, 0.05 * size)


def linear(net: Primitives, x: int, size: float, work: float) -> int:
    x = net.add("matmul", (x,), size, work)
    return net.add("ew", (x,), size, 0.02 * size)


def attention(net: Primitives, x: int, size: float) -> int:
    h = layer_norm(net, x, size)
    q, k, v = (net.add("layout", (linear(net, h, size, 4 * size),), size) for _ in range(3))
    s = net.add("matmul", (q, k), 2 * size, 3 * size)
    s = net.add("ew", (s,), 2 * size, 0.05 * size)
    s = softmax(net, s, 2 * size)
    o = net.add("layout", (net.add("matmul", (s, v), size, 3 * size),), size)
    x = net.add("ew", (x, linear(net, o, size, 4 * size)), size, 0.02 * size)
    h = linear(net, layer_norm(net, x, size), 4 * size, 12 * size)
    g = net.add("ew", (h,), 4 * size, 0.3 * size)
    g = net.add("ew", (h, g), 4 * size, 0.1 * size)
    return net.add("ew", (x, linear(net, g, size, 12 * size)), size, 0.02 * size)


def csp_block(net: Primitives, x: int, size: float, depth: int) -> int:
    a = conv_block(net, x, size, 3 * size)
    b = conv_block(net, x, size, 3 * size)
    for _ in range(depth):
        c = conv_block(net, conv_block(net, a, size, 2 * size), size, 8 * size)
        a = net.add("ew", (a, c), size, 0.02 * size)
    joined = net.add("layout", (a, b), 2 * size)
    return conv_block(net, joined, size, 4 * size)


def instance_norm(net: Primitives, x: int, size: float) -> int:
    m = net.add("reduce", (x,), size / 500, 0.05 * size)
    c = net.add("ew", (x, m), size, 0.05 * size)
    q = net.add("ew", (c,), size, 0.05 * size)
    v = net.add("reduce", (q,), size / 500, 0.05 * size)
    r = net.add("ew", (v,), size / 500, 0.01)
    return net.add("ew", (c, r), size, 0.05 * size)


def network(kind: str, blocks: int, seed: int = 0, **options) -> Problem:
    """kind: 'csp', 'attention', 'style' or 'mixed'."""
    net = Primitives()
    x = net.add("input", (), 6.0)
    x = conv_block(net, x, 12.0, 30.0)
    for block in range(blocks):
        size = 24.0 / (1 + 3 * block // blocks)
        if kind == "csp" or (kind == "mixed" and block % 2 == 0):
            x = csp_block(net, conv_block(net, x, size, 6 * size), size, 1 + block % 3)
        elif kind == "style":
            y = net.add(
                "ew", (instance_norm(net, net.add("conv", (x,), size, 8 * size), size),), size
            )
            y = instance_norm(
                net, net.add("conv", (net.add("layout", (y,), size),), size, 8 * size), size
            )
            x = net.add("ew", (x, y), size, 0.02 * size)
        else:
            x = attention(net, x, size)
    out = linear(net, net.add("reduce", (x,), 0.5, 1.0), 0.2, 0.5)
    return problem_of(net, (out,), seed, **options)


def random_problem(seed: int, primitives: int = 8, limit: int = 3) -> Problem:
    """A layered graph for brute force: layouts, adapters, recomputation, at times two outputs."""
    rng = random.Random(seed)
    net = Primitives()
    values = [net.add("input", (), 1.0) for _ in range(rng.choice((1, 1, 2)))]
    for _ in range(rng.randint(3, primitives)):
        kind = rng.choice(("conv", "matmul", "ew", "ew", "ew", "reduce", "layout"))
        recent = values[-4:]
        reads = tuple(dict.fromkeys(rng.choices(recent, k=rng.choice((1, 2, 2)))))
        values.append(net.add(kind, reads, rng.uniform(0.5, 4), rng.uniform(0.5, 8)))
    made = [v for v in values if net.kinds[v] != "input"]
    outputs = tuple(sorted({made[-1], rng.choice(made)}))
    heavy, layouts = rng.choice((1, 2)), rng.choice((1, 2, 2, 3))
    problem = problem_of(net, outputs, seed, limit, heavy, layouts, noise=0.95)
    # not every kernel is legal: what is left must adapt, recompute or wait
    legal = tuple(c for c in problem.columns if rng.random() < (0.9 if c.is_adapter else 0.45))
    return replace(problem, columns=legal)


def random_hypergraph(seed: int, tokens: int = 12, columns: int = 36) -> Problem:
    """Columns without any structure behind them; `live` and `edges` are guesses, mostly wrong."""
    rng = random.Random(seed)
    value_of = tuple(sorted(rng.randrange(tokens // 2 + 1) for _ in range(tokens)))
    made = []
    for _ in range(columns):
        needs = frozenset(rng.sample(range(tokens), rng.choice((0, 1, 1, 2))))
        gives = frozenset(rng.sample(range(tokens), rng.choice((1, 1, 2))))
        region = frozenset(rng.sample(range(5), rng.choice((1, 2, 3))))
        if len(needs) == 1 == len(gives) and rng.random() < 0.4:
            region = frozenset()
        made.append(Column(rng.choice((0.0, 1.0, rng.uniform(0, 9))), region, needs, gives))
    edges = tuple((rng.randrange(5), rng.randrange(5), v) for v in set(value_of))
    return Problem(
        columns=tuple(made),
        outputs=tuple(rng.sample(range(1, tokens), 2)),
        free=frozenset([0]),
        value_of=value_of,
        producer=tuple(range(max(value_of) + 1)),
        edges=edges,
        live=frozenset(rng.sample(range(5), 3)),
    )
