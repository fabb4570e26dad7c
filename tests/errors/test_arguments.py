"""What a Python program may give wrongly: an error that says what is expected."""

from __future__ import annotations

import ctypes
import os
import shutil

import numpy as np
import pytest
from models import model_of
from onnx import helper

import fissile
from fissile import cli
from fissile.errors import InputError, TargetError, ToolchainError

MODEL = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"])
X = np.array([-1, 0, 1, 2], np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled") / "m"
    fissile.compile(MODEL, tune=0, threads=1, verify=False, folder=folder)
    return folder


@pytest.fixture
def own(compiled, tmp_path):
    return shutil.copytree(compiled, tmp_path / "own")


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("threads", [-3, 0, 1025, 2**40])
def test_threads_out_of_range(compiled, threads):
    for call in (lambda: fissile.load(compiled, threads), lambda: _compile(threads=threads)):
        with pytest.raises(ValueError, match=f"from 1 to 1024, or None .*, not {threads}"):
            call()


@pytest.mark.parametrize("threads", [1.5, "2", True, [2], float("nan")])
def test_threads_that_are_no_number(compiled, threads):
    for call in (lambda: fissile.load(compiled, threads), lambda: _compile(threads=threads)):
        with pytest.raises(TypeError, match="threads is a whole number from 1 to 1024"):
            call()


def test_threads_of_numpy(compiled):
    assert fissile.load(compiled, np.int64(2)).threads == 2


def test_threads_of_the_c_function(compiled):
    """Like the command line; 0 is one per processor."""
    library = ctypes.CDLL(str(compiled / "libmodel.so"))
    library.model_create.restype = ctypes.c_void_p
    library.model_error.restype = ctypes.c_char_p
    weights = str(compiled / "weights.bin").encode()
    for threads in (-1, 1025, 2**31 - 1):
        assert library.model_create(weights, threads) is None
        assert library.model_error() == b"%d threads: not between 0 and 1024" % threads
    for threads in (0, 2):
        model = ctypes.c_void_p(library.model_create(weights, threads))
        assert model and library.model_threads(model) >= 1
        library.model_destroy(model)
    assert "at most 1024" in (compiled / "model.h").read_text()


def _compile(**options):
    return fissile.compile(MODEL, **{"tune": 0, "threads": 1, "verify": False, **options})


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("feeds", [[X], None, X, "x", 5, {"x"}])
def test_run_takes_a_mapping(compiled, feeds):
    with pytest.raises(InputError, match=r"run takes arrays by input name, not .*'x' f32\[4\]"):
        fissile.load(compiled, 1).run(feeds)


def test_foreign_arrays_that_fail(compiled):
    class Foreign:
        def __dlpack__(self, **more):
            raise RuntimeError("lives\nelsewhere " + "x" * 1000)

        def __dlpack_device__(self):
            return (2, 0)

    class NoDevice:
        __dlpack__ = None

    exe = fissile.load(compiled, 1)
    for array in (Foreign(), NoDevice()):
        with pytest.raises(InputError) as error:
            exe(array)
        assert str(error.value).startswith("input 'x': expected an array f32[4], but ")
        assert len(str(error.value)) < 300 and "\n" not in str(error.value)
    assert exe(X).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("target", [None, 5, "gpu"])
def test_unknown_targets(target):
    with pytest.raises(TargetError, match=f"target '{target}' is unknown: this version knows cpu"):
        _compile(target=target)


# ---------------------------------------------------------------- places


def test_save_into_itself(own):
    exe = fissile.load(own, 1)
    before = sorted(own.rglob("*"))
    for inside in (own / "sub", own / "runtime" / "sub", own / "a" / "b"):
        with pytest.raises(ToolchainError, match="lies inside a compiled model"):
            exe.save(inside)
    assert sorted(own.rglob("*")) == before
    assert exe.save(own) == own and exe.save(own.parent / "other").is_dir()


def working(*rest, **more):
    raise AssertionError("the target must be refused before the work")


@pytest.mark.parametrize("place", [".", "", "..", "sub/..", "../here", "absolute"])
def test_the_current_folder_is_refused_before_the_work(place, tmp_path, monkeypatch, capfd):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    place = str(here) if place == "absolute" else place
    monkeypatch.setitem(fissile.compile.__globals__, "load", working)
    with pytest.raises(ToolchainError, match=r"current folder|something else"):
        fissile.compile(MODEL, tune=0, folder=place)
    if place:
        assert cli.main(["compile", "m.onnx", "-o", place]) == 1
        assert "Choose another place" in capfd.readouterr().err
    assert list(here.iterdir()) == []


def test_a_place_inside_an_artifact_is_refused_before_the_work(own, monkeypatch):
    monkeypatch.setitem(fissile.compile.__globals__, "load", working)
    with pytest.raises(ToolchainError, match="lies inside a compiled model"):
        fissile.compile(MODEL, tune=0, folder=own / "sub")


def test_an_empty_folder_is_a_place(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _compile(folder="empty")(X).tolist() == [0, 0, 1, 2]
    assert sorted(os.listdir()) == ["empty"]


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "-inf", "-0.1"])
def test_seconds(compiled, seconds, capfd):
    assert cli.main(["bench", str(compiled), f"--seconds={seconds}"]) == 2
    captured = capfd.readouterr()
    assert "usage error: --seconds" in captured.err and not captured.out


@pytest.mark.parametrize("command", ["compile", "run", "bench", "inspect", "fission"])
@pytest.mark.parametrize("path", ["d/" * 5000 + "m.onnx", "m" * 10_000], ids=["deep", "long"])
def test_long_paths_are_cut(command, path, compiled, capfd, tmp_path):
    more = ["-o", str(tmp_path / "p.onnx")] if command in ("fission", "compile") else []
    assert cli.main([command, path, *more]) == 1
    assert len(capfd.readouterr().err) < 800
    if command in ("fission", "compile", "run"):
        assert cli.main([command, str(compiled if command == "run" else path), "-o", path]) == 1
        assert len(capfd.readouterr().err) < 1200
    if command == "run":
        assert cli.main(["run", str(compiled), "--input", f"x={path}"]) == 1
        assert len(capfd.readouterr().err) < 800
