"""Loop nests that fit their index maps.

`nest(loops, make)` returns a tree of loops around the statements that `make` builds. Where an
expression cannot decide on which side of a bound an index lies, the loop of that index is split
there, or a branch is put at the depth where the index is known; where it meets a division by c of a
loop variable, the loop is split into two. Neighbouring loops that every access walks as one are
merged. The innermost loop runs over lanes where all statements allow it.

Invariant: every point of the loops executes exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from fissile.tiles.across import in_squares, transposed
from fissile.tiles.change import addresses, rewrite, substitution
from fissile.tiles.expr import OPEN, Illegal, Undecided
from fissile.tiles.index import Fn, Index, Var, const, replaced, var
from fissile.tiles.lanes import vectorises
from fissile.tiles.tree import Do, For, If, Lanes, Statement, Store, Tree

Env = Mapping[str, Index]  # the index of each original loop, by name
Decided = Mapping[tuple[Index, int], bool | None]
Make = Callable[[Env, Decided], Sequence[Statement]]
Settled = Callable[[Sequence[Var], list[Statement]], list[Statement]]

SPLITS = 24  # more pieces of a nest than this are branches instead


def loop(name: str, extent: int) -> Var:
    return Var(name, 0, extent - 1)


def nest(
    loops: Sequence[Var],
    make: Make,
    decided: Decided | None = None,
    lanes: bool = True,
    outer: Var | None = None,
    settled: Settled | None = None,
    far: bool = False,
) -> tuple[Tree, ...]:
    """Loops from outermost to innermost. With `lanes` the innermost may become a vector loop;
    `outer` is the vector loop that the whole nest stands in. `settled` may change, or refuse, the
    statements of a piece once its loops are split as far as they will be. `far`: memory lies
    beyond the second cache."""
    if any(v.extent <= 0 for v in loops):
        return ()
    env = {v.name: var(v) for v in loops}
    if (
        _PROBING.get()
        and outer is None
        and settled is None
        and not decided
        and _is_legal(make, env)
    ):
        return ()
    return _Nest(make, lanes, outer, settled, far).split(list(loops), env, dict(decided or {}))


_PROBING: ContextVar[bool] = ContextVar("probing", default=False)


@contextmanager
def probing() -> Iterator[None]:
    """Within, kernels are lowered only to learn which are legal, and their text is worthless.

    Splitting loops takes most of the time of lowering and seldom decides about legality. So `nest`
    makes the statements once, with every question left open. A piece has smaller ranges: it asks
    some of these questions, and its expressions are parts of those. What is legal with all of them
    open is legal in every piece, and the nest is left out. What is not is split to find out."""
    token = _PROBING.set(True)
    try:
        yield
    finally:
        _PROBING.reset(token)


def _is_legal(make: Make, env: Env) -> bool:
    try:
        make(env, OPEN)
    except Illegal:
        return False
    return True


def divisions(loops: Sequence[Var], make: Make) -> Mapping[str, int]:
    """Loops that `nest` would split in two, with the extent of the inner part."""
    if _PROBING.get() or any(v.extent <= 0 for v in loops):
        return {}
    found = _Nest(make, False, None, None)
    found.split(list(loops), {v.name: var(v) for v in loops}, {})
    return found.divided


class _Nest:
    def __init__(
        self,
        make: Make,
        lanes: bool,
        outer: Var | None,
        settled: Settled | None,
        far: bool = False,
    ):
        self.make, self.lanes, self.outer, self.settled = make, lanes, outer, settled
        self.far = far
        self.pieces = 1
        self.divided: dict[str, int] = {}

    def split(self, loops: list[Var], env: Env, decided: Decided) -> tuple[Tree, ...]:
        try:
            statements = list(self.make(env, decided))
        except Undecided as question:
            return self._settle(question, loops, env, decided)
        refined = self._refine(loops, statements)
        if refined is not None:
            v, factor = refined
            self.divided.setdefault(v.name, factor)
            parts = [Var(f"{v.name}o", 0, v.extent // factor - 1), Var(f"{v.name}i", 0, factor - 1)]
            at = loops.index(v)
            new = var(parts[0]) * factor + var(parts[1]) + v.lo
            env = {k: _with(e, v, new) for k, e in env.items()}
            return self.split([*loops[:at], *parts, *loops[at + 1 :]], env, _over(decided, v, new))
        return self._close(loops, statements)

    def _settle(
        self, q: Undecided, loops: list[Var], env: Env, decided: Decided
    ) -> tuple[Tree, ...]:
        inside = [v for v in loops if v in q.index.vars]
        if inside and q.index.is_affine and len(q.index.vars) == 1 and self.pieces < SPLITS:
            return self._cut(q, inside[0], loops, env, decided)
        if self.outer is not None and self.outer in q.index.vars:
            raise Illegal("a border crosses the vector loop")
        depth = max((loops.index(v) for v in inside), default=-1)
        if depth == len(loops) - 1 and depth >= 0:
            return self.split(loops, env, {**decided, (q.index, q.bound): None})
        inner = loops[depth + 1 :]
        yes = self.split(inner, env, {**decided, (q.index, q.bound): True})
        no = self.split(inner, env, {**decided, (q.index, q.bound): False})
        tree: tuple[Tree, ...] = (If(q.index, q.bound, yes, no),)
        for v in reversed(loops[: depth + 1]):
            tree = (For(v, tree),)
        return tree

    def _cut(
        self, q: Undecided, v: Var, loops: list[Var], env: Env, decided: Decided
    ) -> tuple[Tree, ...]:
        """The first value of v, in its order, at which the answer changes."""
        self.pieces += 1
        k = q.index.coefficient(v)
        rest = q.bound - q.index.constant  # k v < rest
        cut = -(-rest // k) if k > 0 else rest // k + 1
        trees: list[Tree] = []
        for lo, hi in ((v.lo, cut - 1), (cut, v.hi)):
            piece = Var(v.name, lo, hi)
            at, new = loops.index(v), var(piece)
            moved = {name: _with(e, v, new) for name, e in env.items()}
            trees += self.split(
                [*loops[:at], piece, *loops[at + 1 :]], moved, _over(decided, v, new)
            )
        return _together(trees)

    def _refine(self, loops: list[Var], statements: Sequence[Statement]) -> tuple[Var, int] | None:
        """A loop to split, because an address divides its variable by a factor of its extent."""
        for fn in _functions(statements):
            if fn.name not in ("div", "mod") or len(fn.args[0].terms) != 1:
                continue
            ((atom, k),), factor = fn.args[0].terms, int(fn.params[0])
            if not isinstance(atom, Var) or atom not in loops or k != 1 or fn.args[0].constant != 0:
                continue
            if atom.lo % factor == 0 and atom.extent % factor == 0 and 1 < factor < atom.extent:
                return atom, factor
        return None

    def _close(self, loops: list[Var], statements: list[Statement]) -> tuple[Tree, ...]:
        if self.settled is not None:
            statements = self.settled(loops, statements)
        loops, statements = _normal(loops, statements)
        loops, statements = _merge(loops, statements)
        loops = [v for v in loops if v.extent > 1]
        turned = transposed(loops, statements)
        if turned is None and self.lanes and self.outer is None:
            turned = in_squares(loops, statements, self.far)
        if turned is not None:
            return turned
        tree: tuple[Tree, ...] = (Do(tuple(statements)),)
        for k, v in enumerate(reversed(loops)):
            lanes = k == 0 and self.lanes and vectorises(statements, v)
            tree = (Lanes(v, tree) if lanes else For(v, tree),)
        return tree


def _together(trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """Neighbouring loops that store to parts of the same rows as one loop: a border is written when
    its row is, not in a pass of its own."""
    done: list[Tree] = []
    for tree in trees:
        last = done[-1] if done else None
        if isinstance(tree, For) and isinstance(last, For) and _share_rows(last, tree):
            done[-1] = For(last.var, _together((*last.body, *tree.body)))
        else:
            done.append(tree)
    return tuple(done)


def _share_rows(a: For, b: For) -> bool:
    stores = [_stores(a), _stores(b)]
    if a.var != b.var or not all(stores):
        return False
    every = [s for part in stores for s in part or ()]
    steps = {s.address.coefficient(a.var) for s in every}
    starts = [s.address.constant for s in every]
    return len({s.pointer for s in every}) == len(steps) == 1 and (
        max(starts) - min(starts) < min(steps)
    )


def _stores(tree: Tree) -> list[Store] | None:
    """The stores of loops that do nothing else."""
    if isinstance(tree, Do):
        stores = [s for s in tree.statements if isinstance(s, Store)]
        return stores if len(stores) == len(tree.statements) else None
    if not isinstance(tree, For | Lanes):
        return None
    parts = [_stores(t) for t in tree.body]
    return None if None in parts else [s for part in parts for s in part or ()]


def _with(e: Index, v: Var, new: Index) -> Index:
    return replaced(e, v, new)


def _over(decided: Decided, v: Var, new: Index) -> Decided:
    return {(_with(i, v, new), b): a for (i, b), a in decided.items()}


def _functions(statements: Sequence[Statement]) -> Iterator[Fn]:
    stack: list[Index] = list(addresses(statements))
    while stack:
        for atom, _ in stack.pop().terms:
            if isinstance(atom, Fn):
                yield atom
                stack += atom.args


def _normal(loops: list[Var], statements: list[Statement]) -> tuple[list[Var], list[Statement]]:
    """Every loop from 0; loops of one step vanish."""
    for v in loops:
        if v.lo or v.extent == 1:
            new = var(Var(v.name, 0, v.hi - v.lo)) + v.lo
            statements = rewrite(statements, lambda i, v=v, new=new: _with(i, v, new))
    return [Var(v.name, 0, v.hi - v.lo) for v in loops], statements


def _merge(loops: list[Var], statements: list[Statement]) -> tuple[list[Var], list[Statement]]:
    loops = [v for v in loops if v.extent > 1]
    at = len(loops) - 2
    while at >= 0:
        o, i = loops[at], loops[at + 1]
        every = list(addresses(statements))
        if all(e.coefficient(o) == e.coefficient(i) * i.extent for e in every) and not any(
            e.depends_nonlinearly(o) or e.depends_nonlinearly(i) for e in every
        ):
            both = Var(i.name, 0, o.extent * i.extent - 1)
            statements = rewrite(statements, substitution({o: const(0), i: var(both)}))
            loops[at : at + 2] = [both]
            at = min(at, len(loops) - 2) if at < len(loops) - 1 else at - 1
            continue
        at -= 1
    return loops, statements
