"""The order of the chosen candidates: topological, with a low peak of live memory.

Several list schedulers propose; the lowest peak of the live set wins, and a local search moves work
around the peak. A candidate may run when every token that it needs is given by somebody. All
choices are deterministic. Aliases cost nothing and run as soon as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fissile.errors import FissileError
from fissile.ir.graph import Graph
from fissile.ir.layout import Token, row_major
from fissile.kernels.candidate import Candidate

ALIGNMENT = 64
_SEARCH_STEPS = 40_000  # candidates looked at by the local search, in all


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def output_tokens(graph: Graph) -> tuple[Token, ...]:
    """What the outputs are read as: row-major."""
    return tuple(Token(v, row_major(v.rank)) for v in graph.outputs)


@dataclass(frozen=True)
class _Problem:
    """Candidates by number; tokens that exist before anything runs are left out of `needs`."""

    chosen: tuple[Candidate, ...]
    needs: tuple[tuple[Token, ...], ...]
    readers: dict[Token, tuple[int, ...]]
    outputs: frozenset[Token]

    def size_bytes(self, token: Token) -> int:
        """Arena bytes of a root. Outputs lie in the caller's memory."""
        return 0 if token in self.outputs else aligned(token.size_bytes)


def arrange(graph: Graph, chosen: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """An order in which every token is given before it is needed, low in peak memory.

    Raises FissileError where the chosen candidates wait for each other.
    """
    problem = _problem(graph, chosen)
    proposals = [_schedule(problem, policy) for policy in (_recent, _least_growth, _least_peak)]
    proposals.append(_depth_first(problem, proposals[0]))
    best = min(proposals, key=lambda order: _peak(problem, order))
    return tuple(problem.chosen[k] for k in _improve(problem, best))


def peak_bytes(graph: Graph, order: Sequence[Candidate]) -> int:
    """The largest live set of an order: what the arena can never fall below."""
    return _peak(_problem(graph, order), range(len(order)))


def _problem(graph: Graph, chosen: Sequence[Candidate]) -> _Problem:
    given = {t for c in chosen for t in c.gives}
    needs = tuple(tuple(t for t in dict.fromkeys(c.needs) if t in given) for c in chosen)
    for c in chosen:
        for t in c.needs:
            if t not in given and t.value.node.prim not in ("input", "constant"):
                raise FissileError(f"nothing chosen gives {t!r}, which {c.impl!r} needs")
    readers: dict[Token, list[int]] = {}
    for k, tokens in enumerate(needs):
        for t in tokens:
            readers.setdefault(t, []).append(k)
    return _Problem(
        tuple(chosen),
        needs,
        {t: tuple(ks) for t, ks in readers.items()},
        frozenset(output_tokens(graph)),
    )


class _Live:
    """What is alive while candidates run one after another."""

    def __init__(self, problem: _Problem):
        self.problem = problem
        self.root: dict[Token, Token] = {}
        self.left: dict[Token, int] = {}  # by root: reads still to come, through any alias
        self.outside: set[Token] = set()  # roots in the memory of inputs and constants
        self.now = self.peak = 0

    def _reads(self, token: Token) -> int:
        return len(self.problem.readers.get(token, ())) + (token in self.problem.outputs)

    def growth(self, k: int) -> tuple[int, int]:
        """(bytes alive while k runs beyond now, bytes alive after k beyond now)."""
        c, p = self.problem.chosen[k], self.problem
        if c.is_alias:
            return 0, 0
        fresh = [t for t in c.gives if t not in self.root]
        grown = sum(p.size_bytes(t) for t in c.gives)
        kept = sum(p.size_bytes(t) for t in fresh if self._reads(t))
        ends: dict[Token, int] = {}
        for t in p.needs[k]:
            ends[self.root[t]] = ends.get(self.root[t], 0) + 1
        own = {r: n for r, n in ends.items() if r not in self.outside}
        freed = sum(p.size_bytes(r) for r, n in own.items() if self.left[r] == n)
        return grown, kept - freed

    def run(self, k: int) -> None:
        c, p = self.problem.chosen[k], self.problem
        grown, after = self.growth(k)
        self.peak = max(self.peak, self.now + grown)
        self.now += after
        for t in p.needs[k]:
            self.left[self.root[t]] -= 1
        for t in c.gives:
            if t in self.root:
                continue
            of = p.needs[k][0] if c.is_alias and p.needs[k] else None
            if of is None:
                self.root[t], self.left[t] = t, self._reads(t)
                self.outside.update([t] if c.is_alias else [])
            else:
                root = self.root[of]
                self.root[t] = root
                self.left[root] += self._reads(t)


def _peak(problem: _Problem, order: Iterable[int]) -> int:
    live = _Live(problem)
    for k in order:
        live.run(k)
    return live.peak


# rank of a ready candidate, least first: (live state, candidate, how recently it became ready)
_Policy = Callable[[_Live, int, int], tuple[int, ...]]


def _recent(live: _Live, k: int, ready_at: int) -> tuple[int, ...]:
    return (-ready_at, live.growth(k)[1], k)


def _least_growth(live: _Live, k: int, ready_at: int) -> tuple[int, ...]:
    during, after = live.growth(k)
    return (after, during, -ready_at, k)


def _least_peak(live: _Live, k: int, ready_at: int) -> tuple[int, ...]:
    during, after = live.growth(k)
    return (max(live.peak, live.now + during), after, -ready_at, k)


def _schedule(problem: _Problem, policy: _Policy) -> list[int]:
    """A list schedule. Raises FissileError where it gets stuck."""
    live, order, step = _Live(problem), [], 0
    missing = [len(tokens) for tokens in problem.needs]
    ready = {k: 0 for k, n in enumerate(missing) if not n}
    while ready:
        free = next((k for k in ready if problem.chosen[k].is_alias), None)
        k = free if free is not None else min(ready, key=lambda k: policy(live, k, ready[k]))
        step += 1
        del ready[k]
        fresh = [t for t in problem.chosen[k].gives if t not in live.root]
        live.run(k)
        order.append(k)
        for reader in (r for t in dict.fromkeys(fresh) for r in problem.readers.get(t, ())):
            missing[reader] -= 1
            if not missing[reader]:
                ready[reader] = step
    if len(order) < len(missing):
        stuck = sorted({problem.chosen[k].impl for k in range(len(missing)) if missing[k]})
        raise FissileError(f"the chosen kernels wait for each other: {', '.join(stuck)}")
    return order


def _depth_first(problem: _Problem, fallback: list[int]) -> list[int]:
    """Producers right before their first reader, the largest operand first (after Sethi and
    Ullman).

    Where a token has two givers only the one that ran first in `fallback` counts as its producer.
    """
    giver: dict[Token, int] = {}
    for k in fallback:
        for t in problem.chosen[k].gives:
            giver.setdefault(t, k)
    done: dict[int, None] = {}
    stack = [(k, False) for k in reversed(fallback)]
    stack += [
        (giver[t], False) for t in sorted(problem.outputs & giver.keys(), key=giver.__getitem__)
    ]
    while stack:
        k, expanded = stack.pop()
        if k in done:
            continue
        if expanded:
            done[k] = None
            continue
        stack.append((k, True))
        operands = sorted(problem.needs[k], key=lambda t: (t.size_bytes, giver[t]))
        stack.extend((giver[t], False) for t in operands if giver[t] not in done)
    return list(done)


def _improve(problem: _Problem, order: list[int]) -> list[int]:
    """Move single candidates later or earlier while that lowers the peak."""
    best, budget = _peak(problem, order), _SEARCH_STEPS
    improved = True
    while improved and budget > 0:
        improved = False
        at = _peak_position(problem, order, best)
        for candidate in _moves(problem, order, at):
            budget -= len(order)
            if budget < 0:
                break
            if (peak := _peak(problem, candidate)) < best:
                order, best, improved = candidate, peak, True
                break
    return order


def _peak_position(problem: _Problem, order: list[int], peak: int) -> int:
    live = _Live(problem)
    for at, k in enumerate(order):
        live.run(k)
        if live.peak == peak:
            return at
    return len(order) - 1


def _moves(problem: _Problem, order: list[int], at: int) -> Iterable[list[int]]:
    """Orders with one candidate moved across position `at`, dependencies kept."""
    givers: dict[Token, list[int]] = {}
    for k in order:
        for t in problem.chosen[k].gives:
            givers.setdefault(t, []).append(k)
    where = {k: i for i, k in enumerate(order)}
    for i in range(at, -1, -1):  # later: right before the first reader
        k = order[i]
        readers = [where[r] for t in problem.chosen[k].gives for r in problem.readers.get(t, ())]
        stop = min((r for r in readers if r > i), default=len(order))
        if stop - 1 > at:
            yield [*order[:i], *order[i + 1 : stop], k, *order[stop:]]
    for i in range(at + 1, len(order)):  # earlier: right after the last giver
        k = order[i]
        start = max((where[givers[t][0]] + 1 for t in problem.needs[k]), default=0)
        if start <= at:
            yield [*order[:start], k, *order[start:i], *order[i + 1 :]]
