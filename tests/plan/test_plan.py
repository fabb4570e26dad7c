"""Plans: nothing alive is overwritten, aliases read their root, results equal the evaluator's."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from handmade import (
    COLUMNS,
    adapter,
    alias,
    compute,
    graph_of,
    lower,
    lower_all,
    random_graph,
    singles,
    token,
)

from fissile.errors import FissileError
from fissile.ir.evaluate import apply, evaluate
from fissile.ir.graph import placeholder
from fissile.ir.layout import row_major
from fissile.ir.prims import add, constant, mul, neg, reshape, slice_
from fissile.ir.types import of
from fissile.kernels.candidate import Packing
from fissile.plan.arena import Span, live_bound, place
from fissile.plan.memory import plan
from fissile.plan.order import arrange, peak_bytes
from fissile.plan.plan import Launch, Plan, Slot


def feeds(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]


def interpret(p: Plan, graph, inputs):
    """Run the plan in numpy over one arena of bytes; every byte remembers which launch wrote it.

    Reading a byte that another launch wrote than the one that gave the token fails: this checks
    lifetimes without looking at them.
    """
    spaces = {
        ("arena", 0): np.zeros(p.arena_bytes, np.uint8),
        ("weights", 0): weights_of(p),
        **{("input", i): bytes_of(a).copy() for i, a in enumerate(inputs)},
        **{
            ("output", i): np.zeros(v.type.size_bytes, np.uint8)
            for i, v in enumerate(graph.outputs)
        },
    }
    owner = {key: np.full(space.size, -1) for key, space in spaces.items()}
    given: dict = {}

    def read(slot: Slot, v, layout):
        window = slice(slot.offset, slot.offset + v.type.size_bytes)
        key = (slot.space, slot.index)
        writers = set(owner[key][window].tolist())
        assert len(writers) <= 1, "two launches wrote what is read as one token"
        stored = tuple(v.shape[a] for a in layout.order)
        data = spaces[key][window].view(v.type.dtype.numpy).reshape(stored)
        return np.transpose(data, np.argsort(layout.order)), writers

    for i, step in enumerate(p.steps):
        if not isinstance(step, Launch):
            a, b = step.source, step.target
            data = spaces[a.space, a.index][a.offset : a.offset + step.size_bytes].copy()
            spaces[b.space, b.index][b.offset : b.offset + step.size_bytes] = data
            continue
        c = step.candidate
        slots = {(q.role, q.index): s for q, s in zip(step.kernel.params, step.slots, strict=True)}
        known = {v: v.array for v in c.region.inputs if v.is_constant}
        for k, t in enumerate(c.needs):
            slot = slots["need", k]
            known[t.value], writers = read(slot, t.value, t.layout)
            if slot.space in ("arena", "output") and t.value.type.numel:
                assert writers <= given[t], f"step {i} reads {t} after it was overwritten"
        for node in c.region.nodes:
            results = apply(node, [known[v] for v in node.inputs])
            known.update(zip(node.outputs, results, strict=True))
        for k, t in enumerate(c.gives):
            slot = slots["give", k]
            data = bytes_of(np.transpose(known[t.value], t.layout.order))
            spaces[slot.space, slot.index][slot.offset : slot.offset + data.size] = data
            owner[slot.space, slot.index][slot.offset : slot.offset + data.size] = i
            given.setdefault(t, {i})
            for buffer in p.buffers:  # what aliases it reads the same writer
                if buffer.token == t and buffer.first == i:
                    given.update((other, {i}) for other in buffer.aliases)
    return [
        spaces["output", i].view(v.type.dtype.numpy).reshape(v.shape)
        for i, v in enumerate(graph.outputs)
    ]


def bytes_of(array):
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def weights_of(p: Plan):
    size = max((w.offset + w.size_bytes for w in p.weights), default=0)
    data = np.zeros(size, np.uint8)
    for w in p.weights:
        data[w.offset : w.offset + w.size_bytes] = bytes_of(w.value.array)
    return data


def check(graph, chosen):
    order = arrange(graph, chosen)
    assert sorted(map(id, order)) == sorted(map(id, chosen))
    p = plan(graph, order, lower_all(order))
    assert p.arena_bound_bytes <= p.arena_bytes
    assert all(b.slot.offset % 64 == 0 for b in p.buffers)
    assert all(w.offset % 64 == 0 for w in p.weights)
    inputs = feeds(graph)
    for got, expected in zip(interpret(p, graph, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(got, expected)
    return p


@pytest.mark.parametrize("seed", range(120))
def test_random_graphs_run_on_the_arena(seed):
    graph = random_graph(seed, size=4 + seed % 40)
    check(graph, singles(graph))


@pytest.mark.parametrize("seed", range(40))
def test_recomputation_and_several_outputs(seed):
    """Overlapping regions that give the same tokens: the first giver's memory is what is read."""
    graph = random_graph(seed, size=14)
    rng = random.Random(seed)
    chosen = singles(graph)
    nodes = [n for n in graph.primitives if n.prim != "reshape"]
    for a, b in itertools.combinations(nodes, 2):
        if rng.random() < 0.1 and a.value in b.inputs and a.value.shape == b.value.shape:
            chosen.append(compute([a, b], [a.value, b.value]))
    rng.shuffle(chosen)
    check(graph, chosen)


def test_outputs_are_written_in_place():
    x = placeholder(of((8, 16)))
    a = neg(x)
    y = add(a, a)
    z = reshape(y, (128,))
    w = mul(a, a)
    graph = graph_of([x], [z, w, z, x, constant(np.ones(3, np.float32))])
    p = check(graph, singles(graph))
    launches = [s for s in p.steps if isinstance(s, Launch)]
    written = {s.slots[-1].space for s in launches if s.candidate.gives[0].value is not a}
    assert written == {"output"}
    copies = [s for s in p.steps if not isinstance(s, Launch)]
    assert sorted(c.target.index for c in copies) == [2, 3, 4]
    assert [c.source.space for c in copies] == ["output", "input", "weights"]
    assert p.arena_bytes == 512  # `a` alone


def test_alias_chain_with_offsets():
    """Rows 2..3 of rows 1..4 of a: offsets add up, and the root lives as long as its last alias."""
    x = placeholder(of((6, 4)))
    a = neg(x)
    rows = slice_(a, (1, 0), (4, 4))
    inner = slice_(rows, (1, 0), (2, 4))
    y = neg(inner)
    big = add(neg(add(x, x)), x)  # wants a's memory
    graph = graph_of([x], [y, big])
    names = {a: "a", rows: "rows", inner: "inner"}
    chosen = [compute([n], [n.value]) for n in graph.primitives if n.value not in (rows, inner)]
    chosen += [alias(a, rows, 16), alias(rows, inner, 16)]
    p = check(graph, chosen)
    (buffer,) = [b for b in p.buffers if b.token.value is a]
    assert [names[t.value] for t in buffer.aliases] == ["rows", "inner"]
    (reader,) = [s for s in p.steps if isinstance(s, Launch) and s.candidate.gives[0].value is y]
    assert reader.slots[0].offset == buffer.slot.offset + 32


def test_alias_of_an_input_needs_no_memory():
    x = placeholder(of((4, 8)))
    flat = reshape(x, (32,))
    y = neg(neg(neg(flat)))
    graph = graph_of([x], [y])
    p = check(graph, singles(graph))
    assert p.arena_bytes == 256 == peak_bytes(graph, arrange(graph, singles(graph)))
    assert p.steps[0].slots[0] == Slot("input", 0, 0)


def test_adapters_and_layouts():
    x = placeholder(of((5, 7)))
    a, y = neg(x), neg(neg(x))
    graph = graph_of([x], [y])
    chosen = [
        adapter(x, row_major(2), COLUMNS),
        compute([a.node], [a], COLUMNS),
        compute([y.node], [y], COLUMNS),
        adapter(y, COLUMNS, row_major(2)),
    ]
    p = check(graph, chosen)
    assert [s.candidate.is_adapter for s in p.steps] == [True, False, False, True]


def test_weights_are_stored_once():
    x, w = placeholder(of((9,))), constant(np.arange(9, dtype=np.float32))
    y = mul(add(x, w), w)
    graph = graph_of([x], [y])
    order = arrange(graph, singles(graph))
    plain = plan(graph, order, lower_all(order))
    assert [(w.offset, w.size_bytes) for w in plain.weights] == [(0, 36)]
    kernels = {c: lower(c, "other" if i else None) for i, c in enumerate(order)}
    assert [w.offset for w in plan(graph, order, kernels).weights] == [0, 64]


def test_what_is_packed_at_opening_is_stored_plain():
    """Two kernels share what is packed alike; the plain constant is there once, for a third too."""
    x, w = placeholder(of((9,))), constant(np.arange(9, dtype=np.float32))
    y = mul(add(mul(x, w), w), w)
    graph = graph_of([x], [y])
    order = arrange(graph, singles(graph))
    opening = Packing("other", (1,), opening=True)
    kernels = {c: lower(c, None) for c in order}
    for c in order[:2]:
        params = (replace(p, packing=opening if p.role == "constant" else None)
                  for p in kernels[c].params)  # fmt: skip
        kernels[c] = replace(kernels[c], params=tuple(params))
    found = plan(graph, order, kernels)
    assert [(w.packing, w.offset, w.size_bytes) for w in found.weights] == [(None, 0, 36)]
    (opened,) = found.opened
    assert (opened.source, opened.offset, opened.size_bytes) == (Slot("weights", 0, 0), 0, 36)
    assert (found.weights_bytes, found.opened_bytes) == (36, 36)
    constants = [
        slot.space
        for step in found.steps
        if isinstance(step, Launch)
        for p, slot in zip(step.kernel.params, step.slots, strict=True)
        if p.role == "constant"
    ]
    assert constants == ["opened", "opened", "weights"]


def test_zero_size():
    x = placeholder(of((0, 4)))
    y = add(neg(x), x)
    p = check(graph_of([x], [y]), singles(graph_of([x], [y])))
    assert p.arena_bytes == 0


def test_waiting_for_each_other_is_refused():
    x = placeholder(of((3,)))
    a, b = neg(x), neg(neg(x))
    graph = graph_of([x], [b])
    stuck = [adapter(a, row_major(1), row_major(1)), compute([b.node], [b])]
    with pytest.raises(FissileError, match="wait for each other"):
        arrange(graph, stuck)
    with pytest.raises(FissileError, match="nothing chosen gives"):
        arrange(graph, [compute([b.node], [b])])


# ---------------------------------------------------------------- order


def all_orders(count, before):
    """Every topological order of a small graph."""
    if not count:
        yield ()
        return
    stack = [((), frozenset())]
    while stack:
        order, done = stack.pop()
        if len(order) == count:
            yield order
        for k in range(count):
            if k not in done and before[k] <= done:
                stack.append(((*order, k), done | {k}))


@pytest.mark.parametrize("seed", range(25))
def test_order_is_near_the_best_of_all(seed):
    """Brute force over all topological orders: the peak is within 25 %, and equal for most."""
    graph = random_graph(1000 + seed, size=8, shape=(4, 16))
    chosen = singles(graph)
    giver = {t: k for k, c in enumerate(chosen) for t in c.gives}
    before = [frozenset(giver[t] for t in c.needs if t in giver) for c in chosen]
    orders = itertools.islice(all_orders(len(chosen), before), 3000)
    best = min(peak_bytes(graph, [chosen[k] for k in order]) for order in orders)
    assert peak_bytes(graph, arrange(graph, chosen)) <= 1.25 * best


def test_order_is_deterministic_and_wide_graphs_stay_low():
    """Sixteen branches that reduce to a sum: depth first needs three buffers, breadth first
    sixteen."""
    x = placeholder(of((64,)))
    total = None
    for i in range(16):
        branch = neg(mul(neg(x), constant(np.full(64, i + 2.0, np.float32))))
        total = branch if total is None else add(total, branch)
    graph = graph_of([x], [total])
    chosen = singles(graph)
    order = arrange(graph, chosen)
    assert peak_bytes(graph, order) <= 4 * 256
    again = arrange(graph, list(chosen))
    assert [id(c) for c in order] == [id(c) for c in again]


# ---------------------------------------------------------------- arena


def overlaps(spans, offsets):
    for (a, p), (b, q) in itertools.combinations(zip(spans, offsets, strict=True), 2):
        together = a.first <= b.last and b.first <= a.last
        if together and p < q + b.size_bytes and q < p + a.size_bytes:
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_placement_is_legal_and_near_the_bound(seed):
    rng = random.Random(seed)
    spans = []
    for _ in range(rng.randint(1, 60)):
        first = rng.randrange(40)
        spans.append(Span(64 * rng.choice([0, 1, 2, 3, 8, 40]), first, first + rng.randrange(12)))
    offsets, size = place(spans)
    assert not overlaps(spans, offsets)
    assert size == max(o + s.size_bytes for o, s in zip(offsets, spans, strict=True))
    brute = max(sum(s.size_bytes for s in spans if s.first <= t <= s.last) for t in range(60))
    assert live_bound(spans) == brute <= size <= 1.15 * brute
    assert place(spans) == (offsets, size)


def test_places_thousands_in_seconds():
    rng = random.Random(0)
    spans = [Span(64 * rng.randint(1, 99), i, i + rng.randint(0, 30)) for i in range(3000)]
    offsets, size = place(spans)
    assert size <= 1.2 * live_bound(spans) and len(offsets) == 3000


def test_token_repr_is_short():
    assert len(repr(token(placeholder(of((2, 3)))))) < 60
