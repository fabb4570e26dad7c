"""Measured times, kept in one SQLite file that several processes may share.

A row is keyed by all that a time depends on: the kernel's key (region structure, layouts,
parameters), the implementation's version, processor, compiler and flags (together `where`), and the
threads. Invariant: no fault of the file ever stops a compilation. A file that SQLite cannot read is
moved aside with one warning; a full or read-only disk makes the store forget.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SCHEMA = 1
_TABLE = """
create table if not exists time (
    kernel text not null, version text not null, place text not null, threads integer not null,
    us real, spread real, fault text, at real not null,
    primary key (kernel, version, place, threads)
) without rowid
"""
_CLAIMS = """
create table if not exists claim (
    kernel text not null, version text not null, place text not null, threads integer not null,
    owner integer not null, until real not null,
    primary key (kernel, version, place, threads)
) without rowid
"""
_BUSY_MS = 30_000
CLAIM_S = 120.0  # a claim outlives its process no longer, wherever it ran


def home() -> Path:
    """Where the store, the calibration and logs live: $FISSILE_HOME, else the user's cache
    folder."""
    if chosen := os.environ.get("FISSILE_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fissile"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fissile"


@dataclass(frozen=True)
class Place:
    """What a time depends on besides the kernel. `where`: processor, compiler and flags."""

    where: str
    threads: int
    version: str


@dataclass(frozen=True)
class Timing:
    """Least of several repetitions; `spread` is (median - least) / least. `us` None: it did not
    run, and `fault` says why."""

    us: float | None
    spread: float = 0.0
    fault: str = ""


class Store:
    """The times known at one place. Every method is safe under concurrent processes."""

    def __init__(self, path: Path | None, place: Place):
        """`path` None keeps the times in memory only."""
        self.path, self.place = path, place
        self._memory: dict[str, Timing] = {}
        self._broken = path is None

    def get(self, keys: Iterable[str]) -> dict[str, Timing]:
        """The times known for these kernels."""
        wanted = list(dict.fromkeys(keys))
        known = {k: self._memory[k] for k in wanted if k in self._memory}
        p = self.place
        with self._open() as db:
            for start in range(0, len(wanted) if db else 0, 500):
                part = [k for k in wanted[start : start + 500] if k not in known]
                rows = db.execute(  # pyright: ignore[reportOptionalMemberAccess]
                    "select kernel, us, spread, fault from time where version = ? and place = ? "
                    f"and threads = ? and kernel in ({','.join('?' * len(part))})",
                    (p.version, p.where, p.threads, *part),
                )
                known.update((k, Timing(us, spread, fault or "")) for k, us, spread, fault in rows)
        return known

    def put(self, timings: Mapping[str, Timing]) -> None:
        """Remember; a later time of the same kernel replaces an earlier one."""
        self._memory.update(timings)
        p, now = self.place, time.time()
        rows = [
            (k, p.version, p.where, p.threads, t.us, t.spread, t.fault, now)
            for k, t in timings.items()
        ]
        with self._open() as db:
            if db:
                db.executemany("insert or replace into time values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def claim(self, keys: Sequence[str], most: int) -> list[str]:
        """The first `most` of `keys` that no other process is measuring: this one will be."""
        p, now, owner = self.place, time.time(), os.getpid()
        with self._open() as db:
            if not db:
                return list(keys[:most])
            db.execute("begin immediate")
            claims = db.execute(
                "select kernel, owner, until from claim where version = ? and place = ? and "
                "threads = ?", (p.version, p.where, p.threads),
            )  # fmt: skip
            alive = cache(_is_alive)
            taken = {k for k, o, until in claims if o != owner and until > now and alive(o)}
            free = [k for k in keys if k not in taken][:most]
            rows = [(k, p.version, p.where, p.threads, owner, now + CLAIM_S) for k in free]
            db.execute("delete from claim where until <= ?", (now,))
            db.executemany("insert or replace into claim values (?, ?, ?, ?, ?, ?)", rows)
            return free
        return list(keys[:most])  # the file had a fault

    @contextmanager
    def _open(self):  # a connection each time: SQLite objects must not cross a fork
        db = None if self._broken else self._connect()
        try:
            with db if db else _nothing():
                yield db
        except sqlite3.DatabaseError as error:
            self._give_up(error)
        finally:
            if db:
                db.close()

    def _connect(self) -> sqlite3.Connection | None:
        assert self.path is not None
        for attempt in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return _prepared(self.path)
            except sqlite3.OperationalError as error:  # locked, read-only, full
                self._give_up(error)
                return None
            except sqlite3.DatabaseError as error:  # not a database, or damaged
                if attempt or not self._move_aside(error):
                    self._give_up(error)
                    return None
            except OSError as error:
                self._give_up(error)
                return None
        return None

    def _move_aside(self, error: Exception) -> bool:
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.name}.damaged-{os.getpid()}-{time.time_ns()}")
        try:
            os.replace(self.path, aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError:
            return not self.path.exists()  # another process moved it first
        warnings.warn(
            f"{self.path} is damaged ({error}); moved to {aside}, starting afresh", stacklevel=2
        )
        return True

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            warnings.warn(f"measured times are not kept: {self.path}: {error}", stacklevel=2)
        self._broken = True


def _is_alive(process: int) -> bool:
    """Is there such a process on this machine?"""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _nothing():
    yield


def _prepared(path: Path) -> sqlite3.Connection:
    """An open database with its table. Raises sqlite3.DatabaseError where the file is none."""
    db = sqlite3.connect(path, timeout=_BUSY_MS / 1000)
    try:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        (found,) = db.execute("pragma user_version").fetchone()
        if found not in (0, SCHEMA):
            raise sqlite3.DatabaseError(f"schema {found}, expected {SCHEMA}")
        db.execute(_TABLE)
        db.execute(_CLAIMS)
        if found != SCHEMA:
            db.execute(f"pragma user_version = {SCHEMA}")
        db.commit()
    except BaseException:
        db.close()
        raise
    return db
