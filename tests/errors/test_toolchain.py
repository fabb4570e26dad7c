"""Faults of the tool chain: no compiler, a failing one, a full disk, a killed run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from handmade import graph_of, lower, lower_all, pack, singles

from fissile.artifact import write as writing
from fissile.artifact.load import load
from fissile.artifact.write import write
from fissile.cost.measure import measure
from fissile.cost.store import Place, Store, Timing
from fissile.errors import FissileError, ToolchainError
from fissile.ir.graph import placeholder
from fissile.ir.prims import constant, mul
from fissile.ir.types import of
from fissile.plan.memory import plan
from fissile.plan.order import arrange
from fissile.targets.cpu import toolchain
from fissile.targets.cpu.build import build
from fissile.targets.cpu.emit import emit
from fissile.targets.cpu.toolchain import CompileError, find

TESTS = str(Path(__file__).parent.parent)


@pytest.fixture(autouse=True)
def fissile_home(monkeypatch, tmp_path):
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path / "home"))


def doubled(size=4):
    x = placeholder(of((size,)))
    return graph_of([x], [mul(x, constant(np.full(size, 2, np.float32)))])


def save(folder, graph, build_with=build, pack_with=pack):
    order = arrange(graph, singles(graph))
    p = plan(graph, order, lower_all(order))
    return write(folder, graph, p, emit(p, graph), pack_with, build_with)


# ---------------------------------------------------------------- compiler


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ToolchainError, match=r"no C\+\+ compiler.*Install one.*fissile\[zig\].*or set CXX"
    ):
        find()


def test_ziglang_is_the_last_resort(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(toolchain, "_checked", lambda command, who: command)
    assert find() == (sys.executable, "-m", "ziglang", "c++")


@pytest.mark.parametrize(
    ("cxx", "message"),
    [
        (
            "/nowhere/c++ -pipe",
            "CXX is '/nowhere/c[+][+] -pipe', which does not start: No such file",
        ),
        ("false", "CXX is 'false', which is no C[+][+] compiler"),
        ("'", """CXX is "'", which is no command: No closing quotation"""),
        ("c++ 'a", """CXX is "c[+][+] 'a", which is no command"""),
        ("''", "CXX is .* does not start"),
    ],
)
def test_wrong_cxx_is_an_error_and_not_passed_over(monkeypatch, cxx, message):
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(ToolchainError, match=message):
        find()


def test_a_program_that_compiles_nothing(monkeypatch, tmp_path):
    """It answers to --version, as /bin/true does, but is none."""
    (tmp_path / "a.cpp").write_text("int a;")
    (tmp_path / "true").write_text("#!/bin/sh\necho true 9.1\n")
    (tmp_path / "true").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "true"))
    with pytest.raises(ToolchainError, match=r"/true is no C\+\+ compiler: .* or set CXX") as error:
        find().compile([tmp_path / "a.cpp"], tmp_path / "a.so")
    assert not isinstance(error.value, CompileError) and "status" not in str(error.value)


def test_compiler_failure_shows_the_first_error_and_the_log(tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("int good;\nint bad = nonsense;\nint worse = rubbish;\n")
    with pytest.raises(CompileError) as error:
        find().compile([source], tmp_path / "out.so")
    first, second = str(error.value).splitlines()
    assert "broken.cpp:2" in first and "nonsense" in first and "rubbish" not in first
    log = Path(second.removeprefix("The compiler's whole output is in ").removesuffix("."))
    assert "rubbish" in log.read_text() and str(source) in log.read_text()


def test_compiler_failure_in_one_of_many_files(tmp_path):
    sources = [tmp_path / f"{i}.cpp" for i in range(5)]
    for i, path in enumerate(sources):
        path.write_text(f"int f{i}() {{ return {i}; }}\n" if i != 3 else "#error three is out\n")
    with pytest.raises(CompileError, match="three is out"):
        find().compile(sources, tmp_path / "out.so")
    assert not list(tmp_path.glob("*.o"))


def test_killed_compiler_is_not_the_texts_fault(tmp_path):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\ncase $1 in --version) echo fake 1.0;; *) kill -9 $$;; esac\n")
    script.chmod(0o755)
    source = tmp_path / "a.cpp"
    source.write_text("")
    with pytest.raises(ToolchainError, match="enough memory") as error:
        toolchain.Toolchain((str(script),), "fake").compile([source], tmp_path / "a.so")
    assert not isinstance(error.value, CompileError)


def test_kernel_that_does_not_compile(tmp_path):
    graph = doubled()
    (c,) = singles(graph)
    kernel = lower(c)
    broken = type(kernel)(
        **{**vars(kernel), "source": kernel.source.replace("float v0", "flaot v0")}
    )
    p = plan(graph, [c], {c: broken})
    with pytest.raises(CompileError, match="flaot"):
        write(tmp_path / "m", graph, p, emit(p, graph), pack, build)
    assert [f.name for f in tmp_path.iterdir()] == ["home"]  # the log


# ---------------------------------------------------------------- disk


def test_disk_full_at_every_write(tmp_path, monkeypatch):
    """ENOSPC at the n-th file that is opened for writing, for every n: nothing half-written, old
    one kept."""
    old = save(tmp_path / "m", doubled(3))
    graph, real, count = doubled(5), Path.open, [0]

    def full(fail_at, self, mode="r", *rest, **more):
        if "w" in mode and ".part" in str(self):
            count[0] += 1
            if count[0] == fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, mode, *rest, **more)

    fail_at, failures = 1, 0
    while True:
        count[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda self, *a, at=fail_at, **k: full(at, self, *a, **k))
            try:
                save(tmp_path / "m", graph)
                break
            except ToolchainError as error:
                assert "the disk is full" in str(error) and "Free some space" in str(error)
        failures += 1
        fail_at += 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
        assert load(old).inputs[0].shape == (3,)
    assert failures > 10
    assert load(old).inputs[0].shape == (5,)


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from errors.test_toolchain import doubled, save
graph = doubled({size})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    save(Path(sys.argv[1]), graph)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("size", "limit"),
    [(1 << 20, 1 << 20), (4, 8000), (4, 100)],  # the weights, the compiler's output, the first file
)
def test_file_size_limit_of_the_system(tmp_path, size, limit):
    """A real fault of the kernel's making, for Python's files and for the compiler's."""
    script = LIMITED.format(tests=TESTS, size=size, limit=limit)
    result = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "m"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("ToolchainError the disk is full"), result
    assert "m" not in [p.name for p in tmp_path.iterdir()] and not list(tmp_path.glob(".m*"))


def test_disk_full_on_save(tmp_path, monkeypatch):
    exe = load(save(tmp_path / "m", doubled()))

    def full(*rest, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fissile.artifact.executable.shutil.copytree", full)
    with pytest.raises(ToolchainError, match="the disk is full"):
        exe.save(tmp_path / "copy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolchainError, match="cannot write"):
        save(tmp_path / "file" / "m", doubled())


def test_interrupted_writing_leaves_nothing(tmp_path):
    def interrupted(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "m", doubled(), interrupted)
    assert not list(tmp_path.iterdir())


def test_failing_swap_brings_the_old_one_back(tmp_path, monkeypatch):
    old = save(tmp_path / "m", doubled(3))
    real = os.rename

    def rename(source, target):
        if Path(target).name == "m" and not str(source).endswith(".old"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(writing.os, "rename", rename)
    with pytest.raises(ToolchainError, match="Input/output error"):
        save(tmp_path / "m", doubled(5))
    assert load(old).inputs[0].shape == (3,)


def test_packer_of_a_wrong_size(tmp_path):
    with pytest.raises(FissileError, match="gives 4 B, the kernel expects 16"):
        save(tmp_path / "m", doubled(), pack_with=lambda array, packing: array[:1])


# ---------------------------------------------------------------- tuning


KILLED = """
import sys, time
from pathlib import Path
from fissile.cost.measure import measure
from fissile.cost.store import Place, Store, Timing

class Bench:
    round_size = 3
    def time(self, kernels, limits=None):
        time.sleep(0.1)
        print("round", flush=True)
        return {key: Timing(1.0) for key, _ in kernels}

store = Store(Path(sys.argv[1]), Place("here", 1, "1"))
measure([(f"k{i}", None) for i in range(300)], Bench(), store)
"""


def test_killed_tuning_resumes(tmp_path):
    """SIGKILL in the middle: what was measured before is not measured again."""
    path = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)

    class Bench:
        round_size = 1000

        def time(self, kernels, limits=None):
            self.keys = [key for key, _ in kernels]
            return {key: Timing(2.0) for key in self.keys}

    bench = Bench()
    keys = [(f"k{i}", None) for i in range(300)]
    times = measure(keys, bench, Store(path, Place("here", 1, "1")))
    assert len(times) == 300
    assert 300 - 15 <= len(bench.keys) <= 300 - 9
    assert bench.keys == [f"k{i}" for i in range(300 - len(bench.keys), 300)]


def test_compiler_killed_by_a_signal_between_processes(tmp_path):
    """Ctrl-C while compiling: no library, no objects, and the interrupt goes on."""
    script = textwrap.dedent(f"""
        import signal
        import sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
        sys.path.insert(0, {TESTS!r})
        from pathlib import Path
        from errors.test_toolchain import slow_compiler
        from fissile.targets.cpu.toolchain import Toolchain
        print("ready", flush=True)
        folder = Path(sys.argv[1])
        slow = Toolchain((str(slow_compiler(folder)),), "slow")
        slow.compile([folder / "a.cpp"], folder / "a.so")
    """)
    (tmp_path / "a.cpp").write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and not (tmp_path / "a.so").exists()


def slow_compiler(folder):
    path = folder / "slow-c++"
    path.write_text("#!/bin/sh\nexec sleep 5\n")
    path.chmod(0o755)
    return path


def test_explicit_toolchain(tmp_path):
    folder = save(tmp_path / "m", doubled(), partial(build, toolchain=find(), jobs=1))
    np.testing.assert_array_equal(load(folder)(np.ones(4, np.float32)), np.full(4, 2, np.float32))
