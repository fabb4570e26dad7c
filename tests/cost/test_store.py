"""The store: shared by processes, keyed by what a time depends on, unharmed by damaged files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import closing

import pytest

from fissile.cost.store import Place, Store, Timing, home
from fissile.errors import FissileError

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


MANY = {f"k{i}" * 30: Timing(float(i)) for i in range(2000)}


def torn(path):
    """Random bytes over the pages in the middle; the header is whole."""
    data = bytearray(path.read_bytes())
    data[3 * 4096 : -3 * 4096] = b"\xa5\x5a\xff" * ((len(data) - 6 * 4096) // 3)
    path.write_bytes(data)


def other_columns(path):
    with sqlite3.connect(path) as db:
        db.execute("drop table time")
        db.execute("create table time (a)")


def other_claims(path):
    with sqlite3.connect(path) as db:
        db.execute("drop table claim")
        db.execute("create table claim (a, b, c, d, e not null)")


def schema_of_rubbish(path):
    with sqlite3.connect(path) as db:
        db.execute("pragma writable_schema = on")
        db.execute("update sqlite_schema set sql = 'create rubbish'")


def use(path):
    """(what is kept, what was claimed, warnings) of a process that does everything."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        s = store(path)
        s.get(MANY)
        s.put({"new": Timing(2.0), **MANY})
        claimed = s.claim(["a", "b"], 1)
        return store(path).get(["new"]), claimed, [str(w.message) for w in caught]


@pytest.mark.parametrize("damage", [torn, other_columns, other_claims, schema_of_rubbish])
def test_a_file_damaged_inside_is_healed_by_the_first_process(tmp_path, damage):
    path = tmp_path / "s"
    store(path).put(MANY)
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    damage(path)
    kept, claimed, said = use(path)
    assert kept == {"new": Timing(2.0)} or damage is other_claims  # found after the times were kept
    assert claimed == ["a"]
    assert len(said) == 1 and "is damaged" in said[0]
    assert len(list(tmp_path.glob("s.damaged-*"))) == 1
    kept, claimed, said = use(path)
    assert (kept, claimed, said) == ({"new": Timing(2.0)}, ["a"], [])


def test_processes_that_find_the_same_damage_move_one_file(tmp_path):
    """None throws away what another has written meanwhile."""
    path = tmp_path / "s"
    store(path).put(MANY)
    other_columns(path)
    workers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, path, f"w{i}"])
        for i in range(4)
    ]
    assert [w.wait() for w in workers] == [0] * 4
    assert len(list(tmp_path.glob("s.damaged-*"))) == 1
    keys = [f"w{i}.{k}" for i in range(4) for k in range(25)]
    assert len(store(path).get(keys)) == 100


def test_a_full_disk_is_no_damage(tmp_path):
    """SQLite's own limit on pages, as a full disk: the file stays where it is."""
    path = tmp_path / "s"
    store(path).put({"a": Timing(1.0)})
    s = store(path)
    with pytest.MonkeyPatch.context() as patch:

        def small(*rest, **more):
            db = connect(*rest, **more)
            db.execute("pragma max_page_count = 1")
            return db

        connect = sqlite3.connect
        patch.setattr("fissile.cost.store.sqlite3.connect", small)
        with pytest.warns(UserWarning, match="not kept.*full"):
            s.put(MANY)
    assert s.get(["k1" * 30]) == {"k1" * 30: Timing(1.0)}
    assert store(path).get(["a"]) == {"a": Timing(1.0)}
    assert not list(tmp_path.glob("s.damaged-*"))


def test_rows_that_say_nothing_are_passed_over(tmp_path):
    path = tmp_path / "s"
    store(path).put({key: Timing(1.0) for key in "abcdef"})
    with sqlite3.connect(path) as db:
        db.execute("update time set us = 'abc' where kernel = 'a'")
        db.execute("update time set us = null where kernel = 'b'")
        db.execute("update time set us = -1.0 where kernel = 'c'")
        db.execute("update time set us = 9e999 where kernel = 'd'")
        db.execute("update time set spread = null where kernel = 'e'")
    assert store(path).get("abcdef") == {"f": Timing(1.0)}


def test_what_lasts_no_longer_than_the_process_is_not_written(tmp_path):
    s = store(tmp_path / "s")
    passing = {"a": Timing(None), "b": Timing(None, fault="does not end", lasts=False)}
    s.put({**passing, "c": Timing(None, fault="crashes")})
    assert s.get("abc") == {**passing, "c": Timing(None, fault="crashes")}
    assert store(tmp_path / "s").get("abc") == {"c": Timing(None, fault="crashes")}


def test_another_schema_is_another_versions_and_stays(tmp_path):
    """Two versions that share a folder keep their times."""
    path = tmp_path / "s"
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 77")
        db.execute("create table newer (a)")
        db.execute("insert into newer values (5)")
    before = path.read_bytes()
    for _ in range(2):
        s = store(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert s.get(["a"]) == {}
            s.put({"a": Timing(1.0)})
            assert s.claim(["b"], 1) == ["b"]
            assert s.get(["a"]) == {"a": Timing(1.0)}
        assert len(caught) == 1 and "schema 77" in str(caught[0].message)
        assert path.read_bytes() == before
    assert not list(tmp_path.glob("s.damaged-*"))


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


def test_home_of_nobody(monkeypatch):
    monkeypatch.setenv("FISSILE_HOME", "~nobody-of-this-name/x")
    with pytest.raises(FissileError, match="'~nobody-of-this-name/x': that user has no home"):
        home()


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


def test_answers_are_kept_while_they_are_of_use(tmp_path, monkeypatch):
    monkeypatch.setattr("fissile.cost.store.ANSWERS", 3)
    path = tmp_path / "s"
    for name in "abc":
        store(path).remember(name, f"text of {name}: é")
    assert store(path, threads=2).recall("a") == "text of a: é"  # and is of use again
    store(path).remember("d", "new")
    assert [store(path).recall(n) for n in "abcd"] == [
        "text of a: é", None, "text of c: é", "new",
    ]  # fmt: skip
    store(path).remember("d", "newer")
    assert store(path).recall("d") == "newer"


def test_an_answer_that_cannot_be_read_is_none(tmp_path):
    path = tmp_path / "s"
    store(path).remember("a", "text")
    with sqlite3.connect(path) as db:
        for wrong in (b"no zlib", "text", 5):
            db.execute("update answer set text = ?", (wrong,))
            db.commit()
            assert store(path).recall("a") is None
    assert Store(None, HERE).recall("a") is None
    Store(None, HERE).remember("a", "text")


@pytest.mark.parametrize("answer", [None, "text"])
def test_times_are_read_where_no_answer_can_be_written(tmp_path, monkeypatch, answer):
    """The file may not be written, and is from before there were answers, or has one."""
    path = tmp_path / "s"
    store(path).put({"k": Timing(1.0)})
    if answer:
        store(path).remember("a", answer)
    plain = sqlite3.connect

    def read_only(path):
        return plain(f"file:{path}?mode=ro", uri=True)

    with closing(plain(path)) as held:  # so that SQLite finds what lies beside the file
        held.execute("select * from time").fetchall()
        monkeypatch.setattr("fissile.cost.store._connected", read_only)
        one = store(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert one.recall("a") == answer
            one.remember("b", "text")
            assert one.recall("b") is None
            assert one.get(["k"])["k"].us == 1.0


def test_an_answer_does_not_wait_for_who_writes(tmp_path):
    path = tmp_path / "s"
    store(path).put({"k": Timing(1.0)})
    store(path).remember("a", "text")
    with closing(sqlite3.connect(path)) as db:
        db.execute("begin immediate")
        one, begin = store(path), time.monotonic()
        assert one.recall("a") == "text"
        one.remember("b", "text")
        assert time.monotonic() - begin < 5 and one.get(["k"])["k"].us == 1.0
