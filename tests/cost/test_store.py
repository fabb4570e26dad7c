"""The store: shared by processes, keyed by what a time depends on, unharmed by damaged files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings

import pytest

from fissile.cost.store import Place, Store, Timing, home

HERE = Place("cpu | compiler | flags", 1, "1")


def store(path, **changes):
    return Store(path, Place(**{**vars(HERE), **changes}))


def test_remembers_across_instances(tmp_path):
    path = tmp_path / "new" / "store.sqlite"
    store(path).put({"a": Timing(1.25, 0.5), "b": Timing(None, fault="does not compile")})
    store(path).put({"a": Timing(1.0, 0.25)})
    assert store(path).get(["a", "b", "c", "a"]) == {
        "a": Timing(1.0, 0.25),
        "b": Timing(None, 0.0, "does not compile"),
    }


@pytest.mark.parametrize("other", [{"where": "other"}, {"threads": 2}, {"version": "2"}])
def test_every_part_of_the_key_counts(tmp_path, other):
    path = tmp_path / "s"
    store(path).put({"a": Timing(1.0)})
    assert store(path, **other).get(["a"]) == {}
    store(path, **other).put({"a": Timing(2.0)})
    assert store(path).get(["a"])["a"].us == 1.0


def test_thousands(tmp_path):
    times = {f"k{i}": Timing(float(i)) for i in range(3000)}
    store(tmp_path / "s").put(times)
    assert store(tmp_path / "s").get(times) == times


def test_in_memory_only():
    s = Store(None, HERE)
    s.put({"a": Timing(1.0)})
    assert s.get(["a", "b"]) == {"a": Timing(1.0)}


WRITER = """
import sys
from pathlib import Path
from fissile.cost.store import Place, Store, Timing
s = Store(Path(sys.argv[1]), Place("cpu | compiler | flags", 1, "1"))
for i in range(25):
    s.put({f"{sys.argv[2]}.{i}": Timing(float(i))})
    assert Store(s.path, s.place).get([f"{sys.argv[2]}.{i}"])
"""


def test_processes_share_it(tmp_path):
    path = tmp_path / "s"
    workers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, path, f"w{i}"])
        for i in range(4)
    ]
    assert [w.wait() for w in workers] == [0] * 4
    keys = [f"w{i}.{k}" for i in range(4) for k in range(25)]
    assert len(store(path).get(keys)) == 100


@pytest.mark.parametrize(
    "damage", [b"this is no database, but long enough" * 99, b"SQLite format 3\0" * 99]
)
def test_damaged_file_is_moved_aside_with_one_warning(tmp_path, damage):
    path = tmp_path / "store.sqlite"
    path.write_bytes(damage)
    s = store(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert s.get(["a"]) == {}
        s.put({"a": Timing(1.0)})
        assert s.get(["a"]) == {"a": Timing(1.0)}
    assert len(caught) == 1 and "damaged" in str(caught[0].message)
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == damage
    assert store(path).get(["a"])["a"].us == 1.0


def test_torn_pages_inside_a_good_file(tmp_path):
    path = tmp_path / "s"
    store(path).put({f"k{i}": Timing(1.0) for i in range(2000)})
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4096)
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = store(path)
        s.get([f"k{i}" for i in range(2000)])  # no exception
        s.put({"new": Timing(2.0)})
        assert s.get(["new"])["new"].us == 2.0


def test_another_schema_is_moved_aside(tmp_path):
    path = tmp_path / "s"
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 77")
    with pytest.warns(UserWarning, match="schema 77"):
        assert store(path).get(["a"]) == {}


def test_unwritable_place_forgets_with_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    s = store(tmp_path / "file" / "store")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        s.put({"a": Timing(1.0)})
        assert s.get(["a"])["a"].us == 1.0  # for as long as this process lives
    assert len(caught) == 1 and "not kept" in str(caught[0].message)


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    monkeypatch.delenv("FISSILE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "fissile"


def test_two_processes_measure_different_kernels(tmp_path):
    """What a living process has claimed is not given to another; a dead one's claims are."""
    keys = [str(i) for i in range(6)]
    script = (
        "import sys\n"
        "from fissile.cost.store import Place, Store\n"
        "from pathlib import Path\n"
        "store = Store(Path(sys.argv[1]), Place('here', 1, '1'))\n"
        "print(*store.claim([str(i) for i in range(6)], 2), flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "s")]
    mine = Store(tmp_path / "s", Place("here", 1, "1"))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline().split() == ["0", "1"]
        assert mine.claim(keys, 3) == ["2", "3", "4"]
        assert mine.claim(keys, 1) == ["2"]  # one's own stay
        other.kill()
    assert mine.claim(keys, 2) == ["0", "1"]
