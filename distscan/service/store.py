"""The file jobs of a service, in SQLite: what is queued, what has run, and what came of it.

::

    queued <-> running -> done | failed
       |          |
       +----------+-----> cancelled

A record is on the disk before the call that makes it returns. So a job survives a crash of the
ranks, of the host, and of its client.
"""

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from .errors import KeyReusedError, ServiceError, StoreError

_VERSION = 2  # of the tables
_TABLES = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    report TEXT,
    error TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started REAL,
    ended REAL
);
CREATE INDEX by_state ON jobs (state, number);
"""
_FROM_1 = "ALTER TABLE jobs ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;"


class Record(NamedTuple):
    """A job. Times are seconds since 1970; None is not yet."""

    number: int
    key: str | None  # the client's: a request that comes again under its key is the same job
    request: dict[str, Any]
    state: str
    report: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int  # how often it was begun: more than once if a service crashed while it ran
    created: float
    started: float | None
    ended: float | None


class Store:
    """The jobs in a folder; one service at a time has it. All methods may be called by any thread.

    Every method raises ``StoreError`` if the disk is full or broken.
    """

    def __init__(
        self, folder: Path, on_change: Callable[[Record], None] = lambda record: None
    ) -> None:
        """``on_change`` hears of each job that was submitted, begins, or has ended.

        It is called before anybody else can see the change, so it must not call this store.
        """
        self._on_change = on_change
        with _naming(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            self._take(folder)
            self._db = self._opened(folder / "jobs.sqlite")
        except BaseException:
            os.close(self._held)
            raise
        self._lock = threading.Lock()

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"another service uses {folder}") from None

    @staticmethod
    def _opened(path: Path) -> sqlite3.Connection:
        with _naming(path):
            # Every statement is a transaction, which is on the disk at its end.
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version == 1:
                db.executescript(f"BEGIN; {_FROM_1} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version != _VERSION:
                db.close()
                raise StoreError(f"{path} is of another version of distscan: {version}")
            return db

    def close(self) -> None:
        """Close the file; another service may use the folder then."""
        self._db.close()
        os.close(self._held)

    # ---- jobs ------------------------------------------------------------------------------------

    def add(self, request: dict[str, Any], key: str | None = None) -> Record:
        """Queue a job; under a key that is known already, return the job that has it.

        Raises ``KeyReusedError`` if that job is of another request.
        """
        text = json.dumps(request, sort_keys=True)
        with self._statement(
            "INSERT INTO jobs (key, request, state, created) VALUES (?, ?, 'queued', ?) "
            "ON CONFLICT (key) DO NOTHING RETURNING *",
            (key, text, time()),
            tell=True,
        ) as rows:
            if rows:
                return rows[0]
        with self._statement("SELECT * FROM jobs WHERE key = ?", (key,)) as rows:
            (found,) = rows
        if json.dumps(found.request, sort_keys=True) != text:
            raise KeyReusedError(f"the key {key!r} is that of job {found.number}, another request")
        return found

    def get(self, number: int) -> Record | None:
        """Return a job; None if there is none of this number."""
        with self._statement("SELECT * FROM jobs WHERE number = ?", (number,)) as rows:
            return rows[0] if rows else None

    def newest(self, most: int = 100, before: int | None = None) -> list[Record]:
        """Return jobs, the newest first; those before a number, if it is given."""
        with self._statement(
            "SELECT * FROM jobs WHERE number < ? ORDER BY number DESC LIMIT ?",
            (1 << 62 if before is None else before, most),
        ) as rows:
            return rows

    def queued(self) -> int:
        """Return the number of jobs that wait."""
        ((found,),) = self._rows("SELECT count(*) FROM jobs WHERE state = 'queued'")
        return int(found)

    def start(self) -> Record | None:
        """Begin the job that has waited longest, and return it; None if none waits."""
        with self._statement(
            "UPDATE jobs SET state = 'running', attempts = attempts + 1, started = ? WHERE number ="
            " (SELECT min(number) FROM jobs WHERE state = 'queued') RETURNING *",
            (time(),),
            tell=True,
        ) as rows:
            return rows[0] if rows else None

    def end(
        self,
        number: int,
        state: str,
        *,
        report: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        """Note the end of a running job, in a state of ``protocol.ENDED``."""
        with self._statement(
            "UPDATE jobs SET state = ?, report = ?, error = ?, ended = ? "
            "WHERE number = ? AND state = 'running' RETURNING *",
            (state, _text(report), _text(error), time(), number),
            tell=True,
        ) as rows:
            if not rows:
                raise KeyError(f"job {number} is not running")

    def queue_again(self, number: int, *, counts: bool = True) -> None:
        """Let a running job be the next one that begins; ``counts`` says if it was an attempt."""
        with self._statement(
            "UPDATE jobs SET state = 'queued', started = NULL, attempts = attempts - ? "
            "WHERE number = ? AND state = 'running' RETURNING *",
            (not counts, number),
        ):
            pass

    def cancel(self, number: int) -> bool:
        """Cancel a job that waits; return whether it did."""
        with self._statement(
            "UPDATE jobs SET state = 'cancelled', ended = ? WHERE number = ? AND state = 'queued' "
            "RETURNING *",
            (time(), number),
            tell=True,
        ) as rows:
            return bool(rows)

    def interrupted(self) -> list[Record]:
        """Return the jobs that were running when the last service ended."""
        with self._statement("SELECT * FROM jobs WHERE state = 'running'", ()) as rows:
            return rows

    def forget(self, before: float) -> int:
        """Remove jobs that ended before a time; return how many."""
        with self._statement(
            "DELETE FROM jobs WHERE ended < ? RETURNING *",
            (before,),
        ) as rows:
            return len(rows)

    # ---- for those who follow what happens -------------------------------------------------------

    @property
    def changes(self) -> int:
        """A number that grows with each change of a job."""
        with self._lock, _naming(self._db):
            return self._db.total_changes

    def open_states(self) -> dict[int, str]:
        """Return the states of all jobs that have not ended, by their numbers."""
        return dict(
            self._rows("SELECT number, state FROM jobs WHERE state IN ('queued', 'running')")
        )

    def newest_ended(self, most: int) -> list[int]:
        """Return the numbers of jobs that have ended, the newest first."""
        text = (  # the plus keeps SQLite from sorting all of them
            "SELECT number FROM jobs WHERE +state NOT IN ('queued', 'running') "
            "ORDER BY number DESC LIMIT ?"
        )
        return [number for (number,) in self._rows(text, most)]

    def numbers_after(self, number: int, most: int) -> list[int]:
        """Return the numbers of jobs behind a number, the oldest first."""
        text = "SELECT number FROM jobs WHERE number > ? ORDER BY number LIMIT ?"
        return [found for (found,) in self._rows(text, number, most)]

    def _rows(self, text: str, *values: int) -> list[tuple[Any, ...]]:
        with self._lock, _naming(self._db):
            return [tuple(row) for row in self._db.execute(text, values)]

    @contextmanager
    def _statement(
        self, text: str, values: Iterable[Any], *, tell: bool = False
    ) -> Iterator[list[Record]]:
        """Run a statement, and yield the jobs that it returns; ``tell`` of them."""
        with self._lock:
            with _naming(self._db):
                found = [_record(row) for row in self._db.execute(text, tuple(values)).fetchall()]
            if tell:
                for record in found:
                    self._on_change(record)
        yield found


def _record(row: sqlite3.Row) -> Record:
    fields = {name: row[name] for name in Record._fields}
    for name in ("request", "report", "error"):
        if fields[name] is not None:
            fields[name] = json.loads(fields[name])
    return Record(**fields)


def _text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


@contextmanager
def _naming(what: object) -> Iterator[None]:
    """Turn errors of SQLite and of the system into ``StoreError``."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"the jobs cannot be stored: {error}") from error
    except ServiceError:
        raise
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error
