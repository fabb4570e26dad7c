"""Measuring: budget, resumption, faults; and the real bench on kernels whose times can be
foretold."""

from __future__ import annotations

import json
import math
import time
import warnings

import pytest

from fissile.cost.calibrate import Calibration, Rate, calibration
from fissile.cost.measure import measure
from fissile.cost.store import Place, Store, Timing
from fissile.errors import ToolchainError
from fissile.kernels.candidate import Kernel, Packing, Param
from fissile.targets.cpu import harness
from fissile.targets.cpu.calibrate import calibrate
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.toolchain import find

HERE = Place("here", 1, "1")


def kernel(name, body="y[begin] = x[begin];", elements=64, tiles=1, weight=0):
    params = [Param("x", "float", "need", 0, elements)]
    params += [Param("w", "float", "constant", 0, weight, Packing("p"))] if weight else []
    params += [Param("y", "float", "give", 0, elements)]
    shown = ", ".join(f"{'' if p.role == 'give' else 'const '}{p.ctype}* {p.name}" for p in params)
    source = f"static void {name}({shown}, char* scratch, long begin, long end) {{ {body} }}"
    return Kernel(name, source, tuple(params), tiles, 256)


class Fake:
    """A bench that gives every kernel a microsecond and can be killed."""

    round_size = 10

    def __init__(self, killed_after=None):
        self.rounds = []
        self.killed_after = killed_after

    def time(self, kernels, limits=None):
        if self.killed_after is not None and len(self.rounds) == self.killed_after:
            raise KeyboardInterrupt
        self.rounds.append([key for key, _ in kernels])
        return {key: Timing(1.0) for key, _ in kernels}


KERNELS = [(f"key{i}", kernel(f"k{i}")) for i in range(35)]


def test_rounds_and_progress(tmp_path):
    bench, seen = Fake(), []
    store = Store(tmp_path / "s", HERE)
    times = measure(KERNELS, bench, store, progress=lambda *a: seen.append(a))
    assert list(times) == [key for key, _ in KERNELS]
    assert [len(r) for r in bench.rounds] == [10, 10, 10, 5]
    assert [(done, total) for done, total, _ in seen] == [(10, 35), (20, 35), (30, 35), (35, 35)]
    assert seen[-1][2] == 0


def test_interrupted_tuning_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        measure(KERNELS, Fake(killed_after=2), Store(tmp_path / "s", HERE))
    again = Fake()
    times = measure(KERNELS, again, Store(tmp_path / "s", HERE))
    assert len(times) == 35
    assert [key for r in again.rounds for key in r] == [f"key{i}" for i in range(20, 35)]


def test_budget(tmp_path):
    class Slow(Fake):
        def time(self, kernels, limits=None):
            clock[0] += len(kernels)
            return super().time(kernels)

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fissile.cost.measure.time.monotonic", lambda: clock[0])
        times = measure(KERNELS, Slow(), Store(None, HERE), budget_s=25)
        assert (len(times), clock[0]) == (25, 25)
        assert len(measure(KERNELS, Slow(), Store(None, HERE), budget_s=0)) == 1  # never nothing


# ---------------------------------------------------------------- the real bench

LOOP = "for (long i = 0; i < {n}; i++) y[0] = y[0] * 0.5f + x[i];"  # a chain: n times the latency


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("FISSILE_HOME", str(tmp_path_factory.mktemp("home")))
    yield CpuBench(find())
    patch.undo()


def test_times_scale_with_work(bench):
    kernels = [
        (f"n{n}", kernel(f"k{n}", LOOP.format(n=n), elements=n)) for n in (1000, 4000, 16000)
    ]
    times = bench.time([*kernels, ("empty", kernel("nothing", ""))])
    a, b, c = (times[f"n{n}"].us for n in (1000, 4000, 16000))
    assert 2.5 < b / a < 6 and 2.5 < c / b < 6
    assert 0 < times["empty"].us < 1 and times["n1000"].spread >= 0


def test_beyond_its_limit_a_kernel_is_timed_roughly(bench):
    """The same kernel of some 20 ms: with a limit far below, it runs twice at least, and less often
    than without."""
    n = 5_000_000
    body = LOOP.format(n=n)
    seconds = {}
    for limit in (0.0, 10.0):
        start = time.monotonic()
        times = bench.time([("a", kernel(f"k{limit:.0f}", body, elements=n))], {"a": limit})
        seconds[limit] = time.monotonic() - start
        assert times["a"].us > 1000
    assert seconds[10.0] < seconds[0.0]


def test_weights_are_cold_and_activations_warm(bench):
    """The same sum over 512 KB: activations come from a near cache, weights from memory."""
    n = 1 << 17
    body = "float s[16] = {{}}; for (long i = 0; i < {n}; i += 16) "
    body += "for (int j = 0; j < 16; j++) s[j] += {p}[i + j]; "
    body += "for (int j = 0; j < 16; j++) y[j] = s[j];"
    times = bench.time(
        [
            ("warm", kernel("warm", body.format(n=n, p="x"), elements=n)),
            ("cold", kernel("cold", body.format(n=n, p="w"), weight=n)),
        ]
    )
    assert times["cold"].us > 1.5 * times["warm"].us


def test_inputs_are_normal_floats(bench):
    """A kernel that loops for ever unless its inputs are finite, varied and not denormal."""
    body = (
        "double s = 0, q = 0; for (int i = 0; i < 4096; i++) s += x[i], q += x[i] * x[i];"
        "s /= 4096, q /= 4096; if (s * s > 0.02 || q < 0.8 || q > 1.2) __builtin_trap(); y[0] = q;"
    )
    assert bench.time([("a", kernel("a", body, elements=4096))])["a"].us is not None


def test_faults_cost_only_themselves(bench):
    good = [(f"good{i}", kernel(f"good{i}")) for i in range(5)]
    bad = ("bad", kernel("bad", "this is not C++;"))
    crash = ("crash", kernel("crash", "*(volatile int*)8 = 1;"))
    times = bench.time([*good[:2], bad, crash, *good[2:]])
    assert all(times[key].us is not None for key, _ in good)
    assert times["bad"].us is None and "error" in times["bad"].fault
    assert times["crash"].us is None and "crashes" in times["crash"].fault


def interrupted(monkeypatch, folder, times, how):
    """The timing program, but the first `times` times the shell does `how` instead; the file that
    counts a line for every start."""
    count, real = folder / "count", harness.build_runner

    def build(toolchain):
        script = folder / "runner"
        script.write_text(
            f"#!/bin/sh\necho >> {count}\n[ $(wc -l < {count}) -gt {times} ] || {{ {how}; }}\n"
            f'exec {real(toolchain)} "$@"\n'
        )
        script.chmod(0o755)
        return script

    monkeypatch.setattr(harness, "build_runner", build)
    return count


GOOD = [(f"good{i}", kernel(f"good{i}")) for i in range(3)]
STARTED = "echo start good1"
STOPS = ["kill -9 $$", "kill -15 $$", f"{STARTED}; kill -9 $$", "exit 3"]


@pytest.mark.parametrize("how", [*STOPS, f"{STARTED}; exec sleep 99", "exec sleep 99"])
def test_a_program_stopped_from_outside_runs_once_more(bench, monkeypatch, tmp_path, how):
    monkeypatch.setattr(harness, "_LIMIT_S", 1.0 if "sleep" in how else 60.0)
    interrupted(monkeypatch, tmp_path, 1, how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        times = bench.time(GOOD)
    assert set(times) == {key for key, _ in GOOD} and all(t.us for t in times.values())


@pytest.mark.parametrize("how", [*STOPS, "exec sleep 99"])
def test_always_stopped_from_outside_is_no_fault_of_a_kernel(bench, monkeypatch, tmp_path, how):
    """Twice, then the kernels stay without a time; other processes ask anew."""
    monkeypatch.setattr(harness, "_LIMIT_S", 0.5 if "sleep" in how else 60.0)
    count = interrupted(monkeypatch, tmp_path, 99, how)
    alone = CpuBench(bench.toolchain, jobs=1)
    store = Store(tmp_path / "s", alone.place)
    with pytest.warns(UserWarning, match="twice: kernels stay without") as caught:
        times = measure(GOOD, alone, store)
    assert len(caught) == 1 and count.read_text() == "\n\n"
    assert times == {key: Timing(None) for key, _ in GOOD}
    assert measure(GOOD, Fake(killed_after=0), store) == times  # not again in this process
    assert Store(tmp_path / "s", alone.place).get(times) == {}


def test_a_kernel_without_an_end_costs_itself_and_this_process_only(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "_LIMIT_S", 3.0)
    endless = ("endless", kernel("endless", "for (volatile int i = 0;;) i = 0;"))
    alone = CpuBench(bench.toolchain, jobs=1)
    store = Store(tmp_path / "s", alone.place)
    times = measure([GOOD[0], endless, GOOD[1]], alone, store)
    assert times["good0"].us and times["good1"].us
    assert times["endless"].us is None and "more than 3 s" in times["endless"].fault
    assert set(Store(tmp_path / "s", alone.place).get(times)) == {"good0", "good1"}


@pytest.mark.parametrize("name", ["SEGV", "ILL", "FPE", "BUS", "ABRT"])
def test_a_crash_is_a_fault_and_kept(bench, monkeypatch, tmp_path, name):
    """The kernel that was last started."""
    interrupted(monkeypatch, tmp_path, 1, f"{STARTED}; kill -{name} $$")
    alone = CpuBench(bench.toolchain, jobs=1)
    times = measure(GOOD, alone, Store(tmp_path / "s", alone.place))
    assert times["good0"].us and times["good2"].us and "crashes" in times["good1"].fault
    assert Store(tmp_path / "s", alone.place).get(times) == times


def test_all_threads(bench):
    body = "for (long i = begin * 1000; i < end * 1000; i++) y[i] = x[i];"
    both = CpuBench(bench.toolchain, threads=2)
    assert both.time([("a", kernel("a", body, elements=64000, tiles=64))])["a"].us > 0
    assert both.place != bench.place


def test_store_and_bench_together(bench, tmp_path):
    kernels = [(f"k{i}", kernel(f"k{i}")) for i in range(3)]
    first = measure(kernels, bench, Store(tmp_path / "s", bench.place))
    assert measure(kernels, Fake(killed_after=0), Store(tmp_path / "s", bench.place)) == first


# ---------------------------------------------------------------- calibration


def test_calibration_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path))
    toolchain = find()
    found = calibrate(toolchain)
    assert 1 < found.peak_gflops < 10_000
    assert found.gb_per_s(1 << 14) >= found.gb_per_s(1 << 28) > 0.5
    assert 0 < found.launch_us < 100
    assert found.l1_bytes < found.l2_bytes <= found.l3_bytes
    monkeypatch.setattr("fissile.targets.cpu.calibrate._measured", None)  # now it is kept
    assert calibrate(toolchain) == found


SAMPLE = Calibration(
    "w", 1, 100.0, (Rate(1024, 200.0), Rate(4096, 210.0), Rate(65536, 20.0)), 0.5, 1, 2, 3
)


def test_roofline():
    assert [SAMPLE.gb_per_s(n) for n in (1, 1024, 2000, 5000, 10**9)] == [210, 210, 210, 210, 20]
    assert math.isclose(SAMPLE.bound_us(1e6, 10), 10.5)
    assert math.isclose(SAMPLE.bound_us(0, 2_000_000), 100.5)


WRONG = [
    *(("peak_gflops", x) for x in ("abc", None, 0, -1.0, math.nan, math.inf, 10**400, True, [1.0])),
    *(("launch_us", x) for x in ("abc", None, -1.0, math.nan, math.inf)),
    *(("l2_bytes", x) for x in ("abc", None, 0, -1, 1.5, math.nan, 10**400)),
    ("threads", 2),
    *(
        ("rates", x)
        for x in (
            [], None, 5, "abc", {}, [1], [{}],
            [{"working_set_bytes": None, "gb_per_s": 1.0}],
            [{"working_set_bytes": 0, "gb_per_s": 1.0}],
            [{"working_set_bytes": 1024, "gb_per_s": 0}],
            [{"working_set_bytes": 1024, "gb_per_s": "fast"}],
            [{"working_set_bytes": 1024, "gb_per_s": math.nan}],
        )
    ),
]  # fmt: skip


def test_damaged_calibration_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path))
    assert calibration("w", 1, lambda: SAMPLE) == SAMPLE
    (path,) = (tmp_path / "calibration").iterdir()
    whole = path.read_text()
    texts = ["", "{}", "[]", '{"rates": []}', "[" * 99999, whole.replace('"w"', '"v"')]
    texts += [json.dumps(json.loads(whole) | {key: value}) for key, value in WRONG]
    measured = []
    for text in texts:
        path.write_text(text)
        assert calibration("w", 1, lambda: measured.append(1) or SAMPLE) == SAMPLE
        assert len(measured) == 1, text
        measured.clear()
    assert calibration("w", 1, lambda: pytest.fail("kept")) == SAMPLE


def test_no_compiler_stops_the_bench(bench, monkeypatch):
    monkeypatch.setattr("fissile.targets.cpu.toolchain.FLAGS", ())
    gone = CpuBench(type(bench.toolchain)(("/nowhere/c++",), "gone"))
    with pytest.raises(ToolchainError, match="cannot start"):
        gone.time(KERNELS[:1])
