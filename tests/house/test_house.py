"""The house rules that a machine can check: layers, circles, imports at the top, no paths of one
machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fissile"
LAYERS = (
    "errors", "ir", "machine", "onnx", "rewrite", "kernels", "tiles", "cost", "select", "plan",
    "targets", "artifact", "report", "verify", "accuracy", "compile", "backend",
    "peers", "bench", "doctor", "inspection", "console", "arguments", "cli", "__main__",
)  # fmt: skip
LONGEST_FILE, LONGEST_FUNCTION = 600, 80  # lines; the aim is 400 and 40


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): (path, ast.parse(path.read_text())) for path in modules()}


def imports(tree):
    """Names of this package's modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "fissile")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            if node.module and node.module.split(".")[0] == "fissile":
                for a in node.names:
                    inner = f"{node.module}.{a.name}"
                    yield inner if inner in TREES else node.module


def layer(name):
    parts = name.split(".")
    return (
        LAYERS.index(parts[1]) if len(parts) > 1 else len(LAYERS)
    )  # the package itself stands last


@pytest.mark.parametrize("name", TREES)
def test_imports_only_what_stands_above(name):
    assert name == "fissile" or name.split(".")[1] in LAYERS, f"{name} has no place in the order"
    for other in imports(TREES[name][1]):
        assert layer(other) <= layer(name), f"{name} imports {other}, which stands below it"


def test_no_circles():
    edges = {name: set(imports(tree)) & TREES.keys() for name, (_, tree) in TREES.items()}
    left = dict(edges)
    while left:
        free = [name for name, needs in left.items() if not (needs - {name}) & left.keys()]
        assert free, f"these import each other in a circle: {sorted(left)}"
        for name in free:
            del left[name]


@pytest.mark.parametrize("name", TREES)
def test_imports_stand_at_the_top(name):
    for node in ast.walk(TREES[name][1]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for inner in ast.walk(node):
                assert not isinstance(inner, ast.Import | ast.ImportFrom), f"{name}:{inner.lineno}"


def functions():
    for name, (_, tree) in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield node.end_lineno - node.lineno + 1, f"{name}.{node.name}"


def test_lengths(record_property, capsys):
    """Fails only far beyond the aim; reports the longest."""
    files = sorted(
        ((len(p.read_text().splitlines()), n) for n, (p, _) in TREES.items()), reverse=True
    )
    longest = sorted(functions(), reverse=True)
    record_property("longest files", files[:5])
    record_property("longest functions", longest[:5])
    with capsys.disabled():
        over = [f"{n} {lines}" for lines, n in files if lines > 400]
        over += [f"{n} {lines}" for lines, n in longest if lines > 40]
        print(f"\nbeyond the aim of 400 lines a file, 40 a function: {', '.join(over) or 'none'}")
    assert files[0][0] <= LONGEST_FILE and longest[0][0] <= LONGEST_FUNCTION


def tracked():
    """Files of the repository, whether committed or not, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 0:
        names = result.stdout.splitlines()
    else:  # an exported tree
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith((".venv", ".git/"))]
    return [ROOT / n for n in names if (ROOT / n).is_file()]


MACHINE = re.compile(r"(?<![\w.}$])/(?:work|home|root|Users|mnt|opt|tmp|var)/\w")


def test_no_path_of_one_machine():
    found = []
    for path in tracked():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in MACHINE.finditer(content)]
    assert not found
