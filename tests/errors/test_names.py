"""Names of a model are data: whatever they hold, the code compiles, runs, and does nothing else."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from handmade import lower_all, pack, singles

from fissile.artifact.load import load
from fissile.artifact.write import write
from fissile.errors import FissileError, InputError
from fissile.ir.graph import Graph, placeholder
from fissile.ir.prims import constant, mul, neg
from fissile.ir.types import of
from fissile.plan.memory import plan
from fissile.plan.order import arrange
from fissile.targets.cpu.build import build
from fissile.targets.cpu.emit import emit, literal

HOSTILE = {
    "comment": '*/ system("touch pwned"); /*',
    "line": "\n#error escaped\n",
    "return": "\r#error escaped\r",
    "splice": "ends with a backslash \\",
    "trigraph": "??/\n#error escaped ??/",
    "quote": '"; system("touch pwned"); "',
    "apostrophe": "'",
    "format": "%s%n%d {0} {PREFIX} @KERNELS@ $HOME `id`",
    "unicode": "ünïcödé ☢ \u202e\u2028\x85 日本",
    "surrogate": "\ud800 alone",
    "control": "".join(map(chr, range(1, 32))),
    "long": "x" * 10_000,
    "long and odd": '*/"\\\n☢' * 2_000,
    "empty": "",
    "path": "../../../etc/passwd",
    "raw": ')" R"(',
}


def emitted(name):
    x = placeholder(of((2, 3)))
    y = mul(neg(x), constant(np.float32(2) * np.ones((2, 3), np.float32)))
    origin = dict.fromkeys((y.node, y.node.inputs[0].node), (name, name + "2"))
    graph = Graph((x,), (y, x), (name,), (name + "!", name + "?"), origin, name)
    order = arrange(graph, singles(graph))
    p = plan(graph, order, lower_all(order))
    return graph, p, emit(p, graph)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_end_to_end(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph, p, files = emitted(name)
    folder = write(tmp_path / "m", graph, p, files, pack, build, {"note": name})
    exe = load(folder, threads=1)
    assert [t.name for t in (*exe.inputs, *exe.outputs)] == [name, name + "!", name + "?"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = exe.run({name: x})
    np.testing.assert_array_equal(results[name + "!"], -2 * x)
    np.testing.assert_array_equal(results[name + "?"], x)
    with pytest.raises(InputError) as error:
        exe.run({name: x[:1]})
    assert (
        str(error.value).isascii() and len(str(error.value)) < 500 and "\n" not in str(error.value)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]  # nothing was touched


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_code_holds_names_only_as_comments_and_literals(name):
    """An independent check: with comments and literals removed, code does not depend on the
    name."""
    for kind in ("model.cpp", "model.h"):
        code, plain = emitted(name)[2][kind], emitted("plain")[2][kind]
        assert code.isascii() and "\r" not in code
        assert max(map(len, code.splitlines())) < 5000
        assert stripped(code) == stripped(plain)


def stripped(code):
    """The text without `//` and `/* */` comments and with empty literals, line splices applied
    first.

    Kernel names depend on the keys of their regions, which are equal here."""
    code = code.replace("\\\n", "")
    token = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    bare = token.sub(lambda m: '""' if m[0].startswith('"') else "", code)
    return re.sub(r'""(\s*"")+', '""', bare)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_literals_are_the_utf8_bytes(name):
    """Python reads octal escapes as C does; adjacent literals concatenate in both."""
    assert b"".join(eval("b" + piece) for piece in literal(name).split("\n    ")) == name.encode(
        "utf-8", "surrogatepass"
    )


def test_manifest_is_json_with_any_name(tmp_path):
    graph, p, files = emitted(HOSTILE["surrogate"])
    folder = write(tmp_path / "m", graph, p, files, pack, build)
    assert json.loads((folder / "manifest.json").read_text())["inputs"][0]["name"] == "\ud800 alone"


@pytest.mark.parametrize("prefix", ["", "a-b", "1st", "é", "a b", "int;"])
def test_prefix_must_be_an_identifier(prefix):
    graph, p, _ = emitted("x")
    with pytest.raises(FissileError, match="no C identifier"):
        emit(p, graph, prefix)
