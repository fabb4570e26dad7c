"""A manifest that somebody edited or a disk damaged: one clear error, whatever stands in it."""

from __future__ import annotations

import json
import shutil

import pytest
from models import model_of
from onnx import helper

import fissile
from fissile import cli
from fissile.errors import ToolchainError

ROW = {"name": "x", "dtype": "f32", "shape": [4, 2]}
OUT = {"name": "y", "dtype": "f32", "shape": [4, 2]}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [4, 2]}, ["y"])
    folder = tmp_path_factory.mktemp("compiled") / "m"
    fissile.compile(model, tune=0, threads=1, verify=False, folder=folder)
    assert json.loads((folder / "manifest.json").read_text())["outputs"] == [OUT]
    return folder


@pytest.fixture
def edited(compiled, tmp_path):
    copy = shutil.copytree(compiled, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())

    def edit(**changes):
        (copy / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        return copy

    return edit


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": [{**OUT, "shape": [1]}]},
        {"outputs": [{**OUT, "shape": [2, 4]}]},
        {"outputs": [{**OUT, "shape": [4, 2, 1]}]},
        {"outputs": [{**OUT, "dtype": "i32"}]},
        {"outputs": [{**OUT, "name": "z"}]},
        {"outputs": []},
        {"outputs": [OUT, OUT]},
        {"inputs": [{**ROW, "shape": [10**30]}]},
        {"inputs": [{**ROW, "name": "x\0"}, ROW]},
        {"inputs": []},
    ],
)
def test_tensors_are_those_of_the_library(edited, changes):
    """The library reads and writes what it was built for, whatever the manifest says."""
    with pytest.raises(ToolchainError, match=r"other (in|out)puts than its manifest\.json says"):
        fissile.load(edited(**changes))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("files", [], r"files is '\[\]', not an object"),
        ("files", {"weights.bin": 5}, "files: 'weights.bin' is '5', not text"),
        ("files", {}, "library is none of files"),
        ("machine", None, "machine is 'null', not an object"),
        ("machine", {"libraries": 5}, "machine.libraries is '5', not a list"),
        ("machine", {"libraries": [5]}, "machine.libraries is '5', not an object"),
        ("machine", {"libraries": [{}]}, "machine.libraries: name is 'null', not text"),
        ("machine", {"architecture": 5}, "machine.architecture is '5', not text"),
        ("machine", {"instructions": 5}, "machine.instructions is '5', not a list"),
        ("facts", None, "facts is 'null', not an object"),
        ("facts", {"selection": 7}, "facts.selection is '7', not an object"),
        ("facts", {"selection": {"choices": 7}}, "facts.selection.choices is '7', not a list"),
        ("facts", {"selection": {"choices": [7]}}, "facts.selection.choices is '7', not an obj"),
        ("facts", {"selection": {"choices": [{"runner_up": {}}]}}, "runner_up has no impl"),
        ("memory", [], r"memory is '\[\]', not an object"),
        ("memory", {"arena_bytes": "5"}, "not a whole number"),
        ("library", 5, "library is '5', not text"),
        ("library", "../m/libmodel.so", "library is none of files"),
        ("name", None, "name is 'null', not text"),
        ("prefix", 5, "prefix is '5', not text"),
        ("prefix", "a b", "prefix is 'a b', which is no C identifier"),
        ("inputs", {}, "inputs is '{}', not a list"),
        ("inputs", [5], r"inputs\[0\] is '5', not an object"),
        ("inputs", [{**ROW, "name": 5}], r"inputs\[0\].name is '5', not text"),
        ("inputs", [{**ROW, "shape": 5}], r"inputs\[0\].shape is '5', not a list"),
        ("inputs", [{**ROW, "shape": [-4, 2]}], r"inputs\[0\].shape is -4, which is negative"),
        ("inputs", [{**ROW, "shape": ["4", 2]}], "not a whole number"),
        ("inputs", [{**ROW, "shape": [True, 2]}], "'true', not a whole number"),
        ("inputs", [{**ROW, "shape": [4.0, 2]}], "'4.0', not a whole number"),
        ("inputs", [{**ROW, "dtype": "f33"}], "'f33', which is no element type"),
        ("outputs", [{"name": "y"}], r"outputs\[0\].dtype is missing"),
        ("surprise", 1, "'surprise' is unknown"),
    ],
)
def test_types_of_fields(edited, field, value, message):
    for verify in (True, False):
        with pytest.raises(ToolchainError, match=message) as error:
            fissile.load(edited(**{field: value}), verify=verify)
        assert "manifest.json is damaged" in str(error.value)
        assert "Compile the model again." in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "null", "{}", '{"format": 1}', "[" * 100_000, "\xff", '{"format": 1, "files": {}}'],
)
def test_no_manifest_at_all(edited, text, capfd):
    folder = edited()
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ToolchainError, match="is damaged"):
        fissile.load(folder)
    assert cli.main(["inspect", str(folder)]) == 1
    error = capfd.readouterr().err
    assert "is damaged" in error and len(error) < 800


@pytest.mark.parametrize("field", ["files", "machine", "memory", "facts", "prefix", "inputs"])
def test_fields_that_are_missing(edited, field):
    folder = edited()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest[field]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ToolchainError, match=f"damaged: {field} is missing"):
        fissile.load(folder)


def test_inspect_of_damaged_artifacts(edited, capfd):
    for changes in ({"memory": []}, {"facts": None}, {"facts": {"selection": 7}}):
        assert cli.main(["inspect", str(edited(**changes))]) == 1
        assert "is damaged" in capfd.readouterr().err
    assert cli.main(["inspect", str(edited(facts={"selection": {"choices": [None] * 9}}))]) == 1
    assert "more steps" in capfd.readouterr().err
    folder = edited()
    (folder / "graph.txt").write_bytes(b"\xff")
    assert cli.main(["inspect", str(folder)]) == 1
    assert "graph.txt: is no text. Compile the model again." in capfd.readouterr().err
