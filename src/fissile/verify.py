"""Is a compiled model right?                                                (design, section 13)

The reference is the primitive graph in float64. The yardstick is the error of an ordinary f32 run
against it: ONNX Runtime where it is installed, else our own evaluator; where the first would
refuse, the larger error of the two. A model passes when its error is at most `factor` times the
yardstick or `floor` of the output's scale, whichever is larger. Both are always reported.

What is NaN or infinite has no such error: it is judged element by element, and where it does not
match the reference it is excused only if the ordinary run does not match there either. It never
enters a yardstick: the other elements are held to what the ordinary run achieves on finite ones.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Event

import numpy as np

from fissile.errors import FissileError, shown
from fissile.ir.blas import one_thread
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value
from fissile.targets.cpu.host import usable_threads

SPREAD = 1.0  # of the logarithms of the factors of an uneven sample
POLICY = {"exact": (2.0, 2e-5), "default": (8.0, 2e-5), "fast": (8.0, 1e-3)}


def most_error(accuracy: str) -> float:
    """That one kernel may be expected to add: one that adds more could not stand in any plan."""
    return 0.0 if accuracy == "exact" else POLICY[accuracy][1]


Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class WrongAnswer(FissileError):
    """The compiled program differs from the reference by more than the policy allows: by `error`
    of the output's scale for `inputs`, where `allowed` is."""

    def __init__(
        self, text: str, error: float = 0.0, allowed: float = 0.0,
        inputs: Sequence[np.ndarray] = (),
    ):  # fmt: skip
        super().__init__(text)
        self.error, self.allowed, self.inputs = error, allowed, inputs


@dataclass(frozen=True)
class Report:
    """Largest errors over all inputs and outputs, relative to each output's scale (its largest
    value). `excused`: elements, over all samples, where neither run matches what is NaN or infinite
    in the reference, or is so itself."""

    error: float
    yardstick: float
    allowed: float
    judge: str
    excused: int = 0

    def __str__(self) -> str:
        apart = f", {self.excused} NaN or infinite as there" if self.excused else ""
        return (
            f"error {self.error:.1e} of scale, {self.judge} {self.yardstick:.1e}, "
            f"allowed {self.allowed:.1e}{apart}"
        )


def samples(graph: Graph, seed: int = 0) -> list[list[np.ndarray]]:
    """Inputs to check with: random, large, all equal, zero; and, where an input is real, random
    ones whose magnitude differs by row, column and channel."""
    rng = np.random.default_rng(seed)
    kinds: list[Callable[[tuple[int, ...]], np.ndarray]] = [
        lambda s: rng.standard_normal(s),
        lambda s: rng.standard_normal(s) * 30,
        lambda s: np.full(s, 0.5),
        lambda s: np.zeros(s),
    ]
    if any(v.type.dtype.is_float and v.shape for v in graph.inputs):
        kinds.append(lambda s: _uneven(s, rng))
    return [[_sample(graph, v, make, rng) for v in graph.inputs] for make in kinds]


def _uneven(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Normal numbers times a factor for each index of each axis. Of a thousand factors, the largest
    is about 25."""
    x = rng.standard_normal(shape)
    for axis, extent in enumerate(shape):
        factors = rng.lognormal(0.0, SPREAD, extent)
        x *= factors.reshape([extent if a == axis else 1 for a in range(len(shape))])
    return x


def _sample(
    graph: Graph, v: Value, make: Callable[..., np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    dtype = v.type.dtype
    if dtype.is_float or dtype.kind == "complex":
        return np.asarray(make(v.shape)).astype(dtype.numpy)
    high = 2 if dtype.name == "bool" else _limit(graph, v)
    return np.asarray(rng.integers(0, high, v.shape)).astype(dtype.numpy)


def _limit(graph: Graph, v: Value) -> int:
    """Integers that become indices, however they are computed on, stay inside what they index."""
    reached, extents, todo = {v}, [8], [v]
    while todo:
        x = todo.pop()
        for n in graph.users.get(x, ()):
            if n.prim == "gather" and n.inputs[1] is x:
                extents.append(n.inputs[0].shape[n.attrs["axis"]])
            elif len(reached) < 64:
                fresh = [y for y in n.outputs if y not in reached and y.type.dtype.is_integer]
                reached.update(fresh)
                todo += fresh
    return max(1, min(extents[1:] or extents))


def _reference(graph: Graph, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and what they give in float64; integers become 0 where they index out of range."""
    try:
        return inputs, evaluate(graph, inputs, reference=True)
    except IndexError:
        inputs = [np.zeros_like(a) if a.dtype.kind in "iu" else a for a in inputs]
        return inputs, evaluate(graph, inputs, reference=True)


class References:
    """All samples, and what the graph gives for them in float64: computed once, side by side, and
    beside what else is done from `begin` on. A context, at whose end nothing of it goes on."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self._ended = graph, Event()
        self._found: Future[list[tuple[list[np.ndarray], list[np.ndarray]]]] | None = None

    def __enter__(self) -> References:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._found is not None:
            wait([self._found])  # who computes now has the threads of numpy, and gives them back

    def begin(self) -> None:
        if self._found is None:
            pool = ThreadPoolExecutor(1)
            self._found = pool.submit(self._all)
            pool.shutdown(wait=False)

    def get(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """[(inputs, outputs)]"""
        self.begin()
        assert self._found is not None
        return self._found.result()

    def _all(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        with one_thread(), ThreadPoolExecutor(usable_threads()) as pool:
            return list(pool.map(self._one, samples(self.graph)))

    def _one(self, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if self._ended.is_set():
            raise CancelledError
        return _reference(self.graph, inputs)


def check(
    graph: Graph, run: Run, reference_run: Run | None, accuracy: str = "default",
    references: References | None = None,
) -> Report:  # fmt: skip
    """Compare `run` with the reference on all samples. Raises WrongAnswer naming output and sizes.

    `reference_run` is an ordinary f32 engine (see `onnxruntime_run`); None: our evaluator in f32.
    `references`: of this graph, if they have begun already.
    """
    judge = "ONNX Runtime" if reference_run else "f32 evaluator"
    ordinary = reference_run or (lambda inputs: evaluate(graph, inputs))
    worst, excused = Report(0.0, 0.0, POLICY[accuracy][1], judge), 0
    for inputs, want in (references or References(graph)).get():
        got, second = run(inputs), cache(partial(evaluate, graph, inputs))
        try:
            other = ordinary(inputs)
        except Exception:  # an engine that refuses a sample is no judge of it
            other = second()
        for k, (name, w, g, o) in enumerate(zip(graph.output_names, want, got, other, strict=True)):
            found = _judged(w, g, o, lambda k=k, second=second: second()[k], accuracy)
            _refuse(found, f"output {shown(name)}", judge, inputs)
            excused += found.excused
            if found.error >= worst.error:
                worst = Report(found.error, found.yardstick, found.allowed, judge)
    return replace(worst, excused=excused)


@dataclass(frozen=True)
class _Verdict:
    """About one output: the error that is nearest to what is allowed, and the numbers of elements
    that are odd (see `Difference`) in this run only, and in the ordinary one too."""

    error: float
    yardstick: float
    allowed: float
    odd: int
    excused: int


def _judged(
    want: np.ndarray, got: np.ndarray, ordinary: np.ndarray, second: Callable[[], np.ndarray],
    accuracy: str,
) -> _Verdict:  # fmt: skip
    mine, judge = difference(got, want), difference(ordinary, want)
    if judge.odd.shape != np.shape(want):  # no judge of this output
        judge = difference(second(), want)
    if mine.odd.shape != np.shape(want):
        return _Verdict(np.inf, judge.error, _allowed(judge.error, accuracy), 0, 0)
    odd, excused = (int(np.count_nonzero(mine.odd & x)) for x in (~judge.odd, judge.odd))
    found = _nearest(mine, (judge,), accuracy)
    if found[0] > found[2]:
        # one run can be lucky where a single element decides the scale: ask another
        found = _nearest(mine, (judge, difference(second(), want)), accuracy)
    return _Verdict(*found, odd, excused)


def _nearest(
    mine: Difference, judges: Sequence[Difference], accuracy: str
) -> tuple[float, float, float]:
    """(error, yardstick, allowed) of the kind of elements that is nearest to what is allowed."""
    usual = max(d.error for d in judges)
    large = max(usual, *(d.large for d in judges))
    pairs = ((mine.error, usual), (mine.large, large))
    found = [(error, y, _allowed(y, accuracy)) for error, y in pairs]
    return max(found, key=lambda f: f[0] / f[2])


def _allowed(yardstick: float, accuracy: str) -> float:
    """Always finite."""
    factor, floor = POLICY[accuracy]
    return max(floor, factor * yardstick) if np.isfinite(factor * yardstick) else floor


def _refuse(found: _Verdict, output: str, judge: str, inputs: Sequence[np.ndarray]) -> None:
    if found.odd:
        raise WrongAnswer(
            f"{output} differs from the reference in what is NaN or infinite, at {found.odd} "
            f"elements where {judge} does not: please report this model",
            np.inf, found.allowed, inputs,
        )  # fmt: skip
    if not found.error <= found.allowed:
        raise WrongAnswer(
            f"{output} differs from the reference by {found.error:.1e} of its scale, {judge} by "
            f"{found.yardstick:.1e}, allowed {found.allowed:.1e}: please report this model",
            found.error, found.allowed, inputs,
        )  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Of an output and its reference, over three kinds of elements. `error`: largest difference,
    relative to the largest reference value, of those that are finite. `large`: of those whose
    reference is more than a quarter of what the output's element type holds, relative to that
    reference at least; an infinity of its sign is as good. `odd`: which elements differ in being
    NaN or infinite."""

    error: float
    large: float
    odd: np.ndarray


def difference(got: np.ndarray, want: np.ndarray) -> Difference:
    """Where shapes differ, every error is infinite and `odd` has the shape of `got`."""
    got = np.asarray(got)
    holds = float(np.finfo(got.dtype).max) if got.dtype.kind == "f" else np.inf
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), np.asarray(want).astype(wide)
    if a.shape != b.shape:
        return Difference(np.inf, np.inf, np.ones(a.shape, bool))
    size = np.abs(b)
    large, both = size > holds / 4, np.isfinite(a) & np.isfinite(b)
    overflow = np.isinf(a) & large & (np.signbit(a.real) == np.signbit(b.real))
    odd = ~(both | overflow | (a == b) | (np.isnan(a) & np.isnan(b)))
    scale = float(np.max(size, where=np.isfinite(b) & ~large, initial=0.0))
    off = np.zeros(size.shape)
    np.abs(np.subtract(a, b, where=both, out=np.zeros_like(a)), out=off)
    worst = float(np.max(off, where=both & ~large, initial=0.0))
    near = both & large
    relative = off[near] / np.maximum(size[near], scale)
    return Difference(
        worst / scale if scale > 0 else worst, float(np.max(relative, initial=0.0)), odd
    )


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """The larger error of a `difference`; infinite where anything is odd."""
    found = difference(got, want)
    return float("inf") if found.odd.any() else max(found.error, found.large)


def onnxruntime_run(model: bytes | str, graph: Graph) -> Run | None:
    """An ordinary run of the model by ONNX Runtime, one thread; None where it is not installed or
    refuses."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
    names = list(graph.output_names)
    return lambda inputs: session.run(names, dict(zip(graph.input_names, inputs, strict=True)))
