"""Measured times, kept in one SQLite file that several processes may share.

A row is keyed by all that a time depends on: the kernel's key (region structure, layouts,
parameters), the implementation's version, processor, compiler and flags (together `where`), and the
threads. Invariant: no fault of the file ever stops a compilation. A file that SQLite cannot read,
or whose tables are others, is moved aside with one warning. A full or read-only disk makes the
store forget, and so does a file of another schema, which is another version's and stays as it is.
Beside the times stand answers to questions that took long, by digest (`select/memory.py`).
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fissile.errors import FissileError, shown

T = TypeVar("T")
SCHEMA = 1  # another one needs another file name: versions share FISSILE_HOME
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
_ANSWERS = """
create table if not exists answer (
    digest text primary key, text blob not null, at real not null
) without rowid
"""
ANSWERS = 256  # kept: those that were of use last
ANSWER_BYTES = 64 << 20  # no text is longer
_BUSY_MS = 30_000
CLAIM_S = 120.0  # a claim outlives its process no longer, wherever it ran
_NOT_THE_FILE = {  # what SQLite reports where the machine or another process is in the way
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_MISUSE,
}  # fmt: skip


def home() -> Path:
    """Where the store, the calibration and logs live: $FISSILE_HOME, else the user's cache
    folder. Raises FissileError where the system knows no such user."""
    chosen = os.environ.get("FISSILE_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "fissile"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fissile"
    except RuntimeError:  # pathlib's word for a user without a home folder
        what = f"FISSILE_HOME is {shown(chosen)}: that user" if chosen else "this user"
        raise FissileError(
            f"{what} has no home folder. Set FISSILE_HOME to a folder for measured times."
        ) from None


@dataclass(frozen=True)
class Place:
    """What a time depends on besides the kernel. `where`: processor, compiler and flags."""

    where: str
    threads: int
    version: str


@dataclass(frozen=True)
class Timing:
    """Least of several repetitions; `spread` is (median - least) / least. `us` None: it did not
    run, and `fault` says why; without a fault, something outside prevented it. `lasts`: is it true
    in other processes too? Only that is written to the file."""

    us: float | None
    spread: float = 0.0
    fault: str = ""
    lasts: bool = True


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
        missing, p = [k for k in wanted if k not in known], self.place

        def read(db: sqlite3.Connection) -> dict[str, Timing]:
            rows: list[tuple[str, Any, Any, Any]] = []
            for start in range(0, len(missing), 500):
                part = missing[start : start + 500]
                rows += db.execute(
                    "select kernel, us, spread, fault from time where version = ? and place = ? "
                    f"and threads = ? and kernel in ({','.join('?' * len(part))})",
                    (p.version, p.where, p.threads, *part),
                )
            return {k: t for k, *row in rows if (t := _timing(*row))}

        return known | self._with_file(read, {}) if missing else known

    def put(self, timings: Mapping[str, Timing]) -> None:
        """Remember; a later time of the same kernel replaces an earlier one."""
        self._memory.update(timings)
        p, now = self.place, time.time()
        rows = [
            (k, p.version, p.where, p.threads, t.us, t.spread, t.fault, now)
            for k, t in timings.items()
            if t.lasts and (t.us is not None or t.fault)
        ]

        def write(db: sqlite3.Connection) -> None:
            db.executemany("insert or replace into time values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

        self._with_file(write, None)

    def claim(self, keys: Sequence[str], most: int) -> list[str]:
        """The first `most` of `keys` that no other process is measuring: this one will be."""
        p, now, owner = self.place, time.time(), os.getpid()

        def claimed(db: sqlite3.Connection) -> list[str]:
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

        return self._with_file(claimed, list(keys[:most]))

    def recall(self, digest: str) -> str | None:
        """The text remembered under `digest`."""

        def read(db: sqlite3.Connection) -> str | None:
            try:
                row = db.execute("select text from answer where digest = ?", (digest,)).fetchone()
            except sqlite3.OperationalError:  # no such table
                return None
            if row is None:
                return None
            _at_once(db, "update answer set at = ? where digest = ?", (time.time(), digest))
            try:
                return zlib.decompressobj().decompress(row[0], ANSWER_BYTES).decode()
            except (zlib.error, TypeError, ValueError):
                return None

        return self._with_file(read, None)

    def remember(self, digest: str, text: str) -> None:
        """Keep a text that took long to find, until ANSWERS others are of more recent use."""
        packed = zlib.compress(text.encode())

        def write(db: sqlite3.Connection) -> None:
            row = (digest, packed, time.time())
            _at_once(db, _ANSWERS)
            _at_once(db, "insert or replace into answer values (?, ?, ?)", row)
            _at_once(
                db, "delete from answer where digest not in "
                "(select digest from answer order by at desc limit ?)", (ANSWERS,),
            )  # fmt: skip

        self._with_file(write, None)

    def _with_file(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """What `work` returns, with the file it needs: the second time on a new one where the first
        showed a damaged one. `otherwise` where there is none."""
        for is_last in (False, True):
            if self._broken or self.path is None:
                break
            number = 0
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # a connection each time: SQLite objects must not cross a fork
                with _lock(self.path, fcntl.LOCK_SH), closing(_connected(self.path)) as db, db:
                    number = self.path.stat().st_ino
                    _prepare(db)
                    return work(db)
            except (sqlite3.DatabaseError, _OtherVersion, OSError) as error:
                if is_last or not _is_damage(error) or not self._move_aside(number, error):
                    self._give_up(error)
        return otherwise

    def _move_aside(self, number: int, error: Exception) -> bool:
        """Is the damaged file, the one of this inode, out of the way?"""
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.name}.damaged-{os.getpid()}-{time.time_ns()}")
        try:
            with _lock(self.path, fcntl.LOCK_EX):
                if self.path.stat().st_ino != number:
                    return True  # another process was first
                os.replace(self.path, aside)
                for suffix in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError:
            return not self.path.exists()
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


class _OtherVersion(Exception):
    """The file is whole, but of another schema."""


def _is_damage(error: Exception) -> bool:
    """Is it the file's fault, and not that of the machine or of this program?"""
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.ProgrammingError):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # text that is no UTF-8
    return code & 0xFF not in _NOT_THE_FILE  # the lowest byte: without details


def _timing(us: Any, spread: Any, fault: Any) -> Timing | None:
    """A row of the file; None where it says nothing."""
    if us is None:
        return Timing(None, fault=fault) if fault and isinstance(fault, str) else None
    if not all(isinstance(x, float) and math.isfinite(x) for x in (us, spread)) or us < 0:
        return None
    return Timing(us, spread)


@contextmanager
def _lock(path: Path, how: int) -> Iterator[None]:
    """Exclusive: nobody has the file open. Without effect where no lock can be had."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.with_name(f"{path.name}.lock").open("a"))
            fcntl.flock(file, how)
        yield


def _at_once(db: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> None:
    """What can be done without, where another process writes or nobody may."""
    with suppress(sqlite3.OperationalError):
        db.execute("pragma busy_timeout = 100")
        db.execute(statement, values)


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_MS / 1000)


def _prepare(db: sqlite3.Connection) -> None:
    """Make the tables. Raises sqlite3.DatabaseError where the file is no database."""
    (found,) = db.execute("pragma user_version").fetchone()
    if found not in (0, SCHEMA):  # before anything is written
        raise _OtherVersion(f"another version of fissile wrote it, schema {found}, not {SCHEMA}")
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = normal")
    db.execute(_TABLE)
    db.execute(_CLAIMS)
    if found != SCHEMA:
        db.execute(f"pragma user_version = {SCHEMA}")
    db.commit()
