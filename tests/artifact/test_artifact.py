"""From plan to a running library and back from disk, against the evaluator."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import json
import random
import shutil
import subprocess

import numpy as np
import pytest
from handmade import COLUMNS, adapter, compute, graph_of, lower_all, pack, random_graph, singles

from fissile.artifact.load import load
from fissile.artifact.write import write
from fissile.errors import InputError, ToolchainError
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import placeholder
from fissile.ir.layout import row_major
from fissile.ir.prims import add, constant, mul, neg
from fissile.ir.text import parse
from fissile.ir.types import of
from fissile.plan.memory import plan
from fissile.plan.order import arrange
from fissile.targets.cpu.build import build
from fissile.targets.cpu.emit import UNIT_KERNELS, emit


def artifact(folder, graph, chosen=None, facts=None):
    order = arrange(graph, chosen or singles(graph))
    p = plan(graph, order, lower_all(order), dict.fromkeys(order, 1.5))
    return write(folder, graph, p, emit(p, graph), pack, build, facts)


def feeds(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]


def simple():
    x, y = placeholder(of((2, 9))), placeholder(of((2, 9)))
    total = add(mul(x, constant(np.arange(18, dtype=np.float32).reshape(2, 9))), y)
    return graph_of([x, y], [total, neg(total)], input_names=("x", "y"), output_names=("s", "d"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    graph = simple()
    folder = artifact(
        tmp_path_factory.mktemp("saved") / "model", graph, facts={"selection": {"us": 3}}
    )
    return graph, folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[1], tmp_path / "copy")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("threads", [1, 3])
def test_runs_as_the_evaluator(seed, threads, tmp_path):
    graph = random_graph(seed, size=20, shape=(5, 11))
    exe = load(artifact(tmp_path / "m", graph), threads=threads)
    assert exe.threads == threads
    for again in range(3):  # the arena holds what the call before left
        inputs = feeds(graph, again)
        results = exe(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for got, expected in zip(results, evaluate(graph, inputs), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_layouts_and_adapters(tmp_path):
    x = placeholder(of((5, 7)))
    y = neg(mul(x, x))
    graph = graph_of([x], [y])
    chosen = [
        adapter(x, row_major(2), COLUMNS),
        compute(graph.primitives, [y], COLUMNS),
        adapter(y, COLUMNS, row_major(2)),
    ]
    (array,) = feeds(graph)
    np.testing.assert_array_equal(
        load(artifact(tmp_path / "m", graph, chosen))(array), -array * array
    )


def test_call_forms(saved):
    graph, folder = saved
    exe = load(folder)
    x, y = feeds(graph)
    s, d = evaluate(graph, [x, y])
    assert [(t.name, t.shape, t.dtype) for t in exe.inputs] == [
        ("x", (2, 9), np.float32),
        ("y", (2, 9), np.float32),
    ]
    assert exe.selection == {"us": 3}
    by_name = exe.run({"y": y, "x": x})
    assert list(by_name) == ["s", "d"]
    np.testing.assert_array_equal(by_name["s"], s)
    np.testing.assert_array_equal(exe(x, y)[1], d)
    assert len(exe.profile(x, y)) == 3 and all(t >= 0 for t in exe.profile(x, y))
    assert "x" in repr(exe)


def test_strided_and_foreign_arrays(saved):
    graph, folder = saved
    exe = load(folder)
    x, y = feeds(graph)
    expected = exe(x, y)[0]
    np.testing.assert_array_equal(exe(np.asfortranarray(x), y)[0], expected)
    wide = np.repeat(x, 2, axis=1)
    np.testing.assert_array_equal(exe(wide[:, ::2], y)[0], expected)

    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    np.testing.assert_array_equal(exe(Foreign(x), y)[0], expected)


def test_results_are_fresh_and_calls_may_overlap(saved):
    graph, folder = saved
    exe = load(folder, threads=2)
    pairs = [feeds(graph, seed) for seed in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda pair: exe(*pair), pairs))
    for pair, result in zip(pairs, results, strict=True):
        np.testing.assert_array_equal(result[0], evaluate(graph, pair)[0])
    first, second = exe(*pairs[0]), exe(*pairs[1])
    assert not np.shares_memory(first[0], second[0])
    assert first[0].ctypes.data % 64 == 0
    first[0][:] = 0  # results belong to the caller


def test_memory_of_results_is_used_again_only_when_nobody_holds_it(saved):
    graph, folder = saved
    exe = load(folder, threads=1)
    holders = (
        lambda y: y,
        lambda y: y[1:, ::2],
        lambda y: y.reshape(-1).view(np.uint32),
        lambda y: np.from_dlpack(y),
        memoryview,
        lambda y: y.base,
    )
    held, addresses = [], set()
    for seed in range(60):
        inputs = feeds(graph, seed)
        expected = evaluate(graph, inputs)
        total, negative = exe(*inputs)
        assert total.ctypes.data % 64 == 0 and total.flags.writeable
        np.testing.assert_array_equal(total, expected[0])
        np.testing.assert_array_equal(negative, expected[1])
        addresses.add(total.ctypes.data)
        if seed % 3 == 0:
            hold = holders[seed // 3 % len(holders)](total)
            held.append((hold, np.array(hold)))
        del total, negative
    for hold, before in held:
        np.testing.assert_array_equal(np.asarray(hold), before)
    assert len(addresses) <= len(held) + 2, "memory that nobody held was left lying"


def test_inputs_that_are_read_only_or_of_another_order(saved):
    graph, folder = saved
    exe = load(folder, threads=1)
    x, y = feeds(graph)
    expected = evaluate(graph, (x, y))
    fixed = x.copy()
    fixed.flags.writeable = False
    wide = np.repeat(x, 2, axis=1)
    for given in (fixed, np.asfortranarray(x), wide[:, ::2], x[::-1].copy()[::-1]):
        np.testing.assert_array_equal(given, x)
        np.testing.assert_array_equal(exe(given, y)[0], expected[0])
    with pytest.raises(InputError, match="f32"):
        exe(x.astype(">f4"), y)


def test_zero_size(tmp_path):
    x = placeholder(of((0, 4)))
    graph = graph_of([x], [add(neg(x), x), neg(x)])
    a, b = load(artifact(tmp_path / "m", graph))(np.zeros((0, 4), np.float32))
    assert a.shape == b.shape == (0, 4)


def test_no_inputs_and_scalars(tmp_path):
    c, x = constant(np.float32(2.5)), placeholder(of(()))
    graph = graph_of([x], [neg(x), c, x])
    a, b, same = load(artifact(tmp_path / "m", graph))(np.float32(4))
    assert (a.shape, float(a), float(b), float(same)) == ((), -4.0, 2.5, 4.0)
    only = graph_of([], [c])
    assert float(load(artifact(tmp_path / "n", only))()) == 2.5


def test_many_kernels_compile_in_parts(tmp_path):
    """More kernels than one file holds, more steps than one function: same results."""
    rng = random.Random(0)
    x = placeholder(of((6,)))
    values = [x]
    for i in range(3 * UNIT_KERNELS):
        values.append(add(values[-1] * (1 + i / 1000), rng.choice(values)))
    values.append(values[-1] * 1e-3)
    graph = graph_of([x], [values[-1]])
    folder = artifact(tmp_path / "m", graph)
    assert len(list(folder.glob("kernels_*.cpp"))) > 1
    assert not list(folder.glob("*.o"))
    (array,) = feeds(graph)
    array *= 1e-30
    np.testing.assert_allclose(load(folder)(array), evaluate(graph, [array])[0], rtol=1e-6)


def test_save_replace_and_reload(saved, tmp_path):
    graph, folder = saved
    exe = load(folder)
    x, y = feeds(graph)
    target = tmp_path / "deep" / "er"
    assert exe.save(target) == target
    again = load(target)
    (a,), other = feeds(graph)[:1], placeholder(of((2, 9)))
    artifact(target, graph_of([other], [mul(other, other)]))  # an artifact may be replaced
    np.testing.assert_array_equal(load(target)(a), a * a)
    np.testing.assert_array_equal(again(x, y)[1], exe(x, y)[1])  # while the old one still runs
    assert sorted(p.name for p in target.parent.iterdir()) == ["er"]


def test_temporary_folder_goes_away(copy):
    exe = load(copy, temporary=True)
    del exe
    gc.collect()
    assert not copy.exists()


def test_graph_text_of_the_artifact(saved):
    graph, folder = saved
    table = {
        c.node.attrs["value"].digest: c.array
        for n in graph.nodes
        for c in n.outputs
        if c.is_constant
    }
    assert parse((folder / "graph.txt").read_text(), table).outputs == graph.outputs


def test_c_program_links_it(saved, tmp_path):
    """model.h is plain C; a C program runs the model with no Python about."""
    _, folder = saved
    main = tmp_path / "main.c"
    main.write_text("""
#include <stdio.h>
#include "model.h"
int main(int argc, char** argv) {
  float x[18], y[18], s[18], d[18];
  for (int i = 0; i < 18; i++) x[i] = i, y[i] = 1;
  const void* in[] = {x, y};
  void* out[] = {s, d};
  model* m = model_create(argv[1], 1);
  if (!m) return puts(model_error()), 1;
  model_run(m, in, out);
  printf("%s %s %d ", model_inputs()[0].name, model_outputs()[1].dtype, model_input_count());
  printf("%g %g\\n", s[17], d[2]);
  model_destroy(m);
  return model_create("nowhere", 1) ? 1 : (puts(model_error()), 0);
}""")
    program = tmp_path / "main"
    subprocess.run(
        ["cc", "-std=c99", "-pedantic", "-Wall", "-Werror", main, f"-I{folder}",
         folder / "libmodel.so", f"-Wl,-rpath,{folder}", "-o", program], check=True,
    )  # fmt: skip
    result = subprocess.run(
        [program, folder / "weights.bin"], capture_output=True, text=True, check=True
    )
    assert result.stdout == "x f32 2 290 -5\nnowhere: cannot open\n"


def test_other_prefix(tmp_path):
    graph = simple()
    order = arrange(graph, singles(graph))
    p = plan(graph, order, lower_all(order))
    files = emit(p, graph, "my_net")
    exe = load(write(tmp_path / "m", graph, p, files, pack, build, prefix="my_net"))
    x, y = feeds(graph)
    np.testing.assert_array_equal(exe(x, y)[0], evaluate(graph, [x, y])[0])
    assert "my_net_run(" in files["model.h"] and " model_" not in files["model.cpp"]


def test_exports_only_the_api(saved):
    library = ctypes.CDLL(str(saved[1] / "libmodel.so"))
    assert library.model_run and library.model_create
    with pytest.raises(AttributeError):
        _ = library.pool_create
    names = subprocess.run(
        ["nm", "-D", "--defined-only", saved[1] / "libmodel.so"], capture_output=True, text=True
    ).stdout
    assert "_entry" not in names


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ([np.zeros((2, 8), np.float32)], ["'x'", "f32[2,9]", "f32[2,8]", "shape"]),
        ([np.zeros((18,), np.float32)], ["'x'", "f32[2,9]", "f32[18]"]),
        ([np.zeros((2, 9), np.float64)], ["'x'", "f32[2,9]", "float64", "astype('float32')"]),
        ([np.zeros((2, 9), ">f4")], ["'x'", ">f4", "astype"]),
        ([[[0.0] * 9] * 2], ["'x'", "expected an array", "list"]),
        ([np.array(["a"])], ["'x'", "f32[2,9]"]),
    ],
)
def test_wrong_arrays(saved, arrays, parts):
    with pytest.raises(InputError) as error:
        load(saved[1])(*arrays, np.zeros((2, 9), np.float32))
    assert all(part in str(error.value) for part in parts), error.value


def test_wrong_names(saved):
    exe = load(saved[1])
    x = np.zeros((2, 9), np.float32)
    with pytest.raises(InputError, match=r"no input is called 'z'.*'x' f32\[2,9\], 'y'"):
        exe.run({"x": x, "y": x, "z": x})
    with pytest.raises(InputError, match="input 'y' is missing"):
        exe.run({"x": x})
    with pytest.raises(InputError, match=r"1 arrays given\. The model has 2 inputs"):
        exe(x)


def test_damaged_artifacts(saved, copy, tmp_path):
    with pytest.raises(ToolchainError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(ToolchainError, match="no compiled model"):
        load(tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())

    def rewritten(**changes):
        (copy / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        return copy

    with pytest.raises(ToolchainError, match="format 99"):
        load(rewritten(format=99))
    with pytest.raises(ToolchainError, match="lacks warp_drive: rebuild it here"):
        load(rewritten(machine={**manifest["machine"], "instructions": ["avx2", "warp_drive"]}))
    with pytest.raises(ToolchainError, match="built for pdp11"):
        load(rewritten(machine={**manifest["machine"], "architecture": "pdp11"}))
    with pytest.raises(ToolchainError, match="damaged"):
        load(rewritten(surprise=1))
    load(rewritten())
    (copy / "manifest.json").write_text("{")
    with pytest.raises(ToolchainError, match="damaged"):
        load(copy)
    rewritten()
    data = bytearray((copy / "weights.bin").read_bytes())
    data[5] ^= 1
    (copy / "weights.bin").unlink()  # the file of a model that is alive must stay as it is
    (copy / "weights.bin").write_bytes(data)
    with pytest.raises(ToolchainError, match=r"weights\.bin is not the file that was built"):
        load(copy)
    (copy / "weights.bin").write_bytes(b"")
    with pytest.raises(ToolchainError, match="not the weights of this model"):
        load(copy, verify=False)
    (copy / "weights.bin").unlink()
    with pytest.raises(ToolchainError, match=r"weights\.bin is missing"):
        load(copy)
    shutil.copy(saved[1] / "weights.bin", copy)
    (copy / "libmodel.so").unlink()
    (copy / "libmodel.so").write_text("no library")
    with pytest.raises(ToolchainError, match="cannot load"):
        load(copy, verify=False)


def test_never_replaces_what_is_no_artifact(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("five years")
    with pytest.raises(ToolchainError, match="something else"):
        artifact(tmp_path / "mine", simple())
    (tmp_path / "file").write_text("x")
    with pytest.raises(ToolchainError, match="no folder"):
        artifact(tmp_path / "file", simple())
    with pytest.raises(ToolchainError, match="cannot write"):
        artifact(tmp_path / "file" / "below", simple())
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "five years"
    (tmp_path / "empty").mkdir()
    load(artifact(tmp_path / "empty", simple()))
