"""The file jobs of a service, in SQLite: their requests, states and reports.

::

    queued <-> running -> done | failed
       |          |
       +----------+-----> cancelled

A record is on the disk before the call that makes it returns. So a job survives a crash of the
ranks, of the host, and of its client.

::

    lock            a service holds it; the highest number of a job, so that no number comes again
    jobs.sqlite     the jobs; written again if it is removed while a service runs
"""

import fcntl
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from .errors import KeyReusedError, ServiceError, StoreError, StoreLostError

_log = logging.getLogger("distscan.service")

_VERSION = 3  # of the tables
# ``inputs`` has all of them, and ``request`` the first alone: lists of jobs do not read the others.
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
    ended REAL,
    input_count INTEGER NOT NULL DEFAULT 1,
    inputs TEXT
);
CREATE INDEX by_state ON jobs (state, number);
"""
_FROM_1 = "ALTER TABLE jobs ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;"
_FROM_2 = """
ALTER TABLE jobs ADD COLUMN input_count INTEGER NOT NULL DEFAULT 1;
ALTER TABLE jobs ADD COLUMN inputs TEXT;
"""
_SUMMARY = (
    "SELECT number, key, request, state, report, error, attempts, created, started, ended, "
    "input_count, NULL AS inputs FROM jobs"
)


class Record(NamedTuple):
    """A job. Times are seconds since 1970, and None until they have come."""

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
    input_count: int  # of ``request``, which has the first alone in lists


class Store:
    """The jobs in a folder, for one service at a time. All methods may be called by any thread.

    Every method raises ``StoreError`` if the disk is full or broken, ``StoreLostError`` if the file
    of the jobs was replaced or cut short.
    """

    def __init__(self, folder: Path, *listeners: Callable[[Record], None]) -> None:
        """Call ``listeners`` with each job that was submitted, begins, or has ended.

        The calls come before others can see the change, so they must not call this store.
        """
        self._listeners, self._path = listeners, folder / "jobs.sqlite"
        with _store_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        self._lock, self._changes_before, self._highest = threading.Lock(), 0, 0
        try:
            self._acquire_lock(folder)
            self._db = self._open()
            self._continue_numbers()
        except BaseException:
            os.close(self._lock_file)
            raise

    def _acquire_lock(self, folder: Path) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"another service uses {folder}") from None

    def _open(self) -> sqlite3.Connection:
        path = self._path
        with _store_errors(path):
            # Every statement is a transaction, which is on the disk at its end.
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version in (1, 2):
                db.executescript(f"BEGIN; {_FROM_1 * (version == 1)} {_FROM_2}")
                _split_inputs(db)
                db.execute(f"PRAGMA user_version = {_VERSION}")
                db.execute("COMMIT")
            elif version != _VERSION:
                db.close()
                raise StoreError(f"{path} is of another version of distscan: {version}")
            self._identity, self._size = _identity_of(path)
            return db

    # ---- numbers, and the file ------------------------------------------------------------------

    def _continue_numbers(self) -> None:
        """Let the next number follow the highest one: ``jobs.sqlite`` may be a new file."""
        with _store_errors(self._path):
            highest = int(os.pread(self._lock_file, 20, 0).strip() or 0)
            self._db.execute(
                "INSERT INTO sqlite_sequence (name, seq) SELECT 'jobs', 0 "
                "WHERE NOT EXISTS (SELECT * FROM sqlite_sequence WHERE name = 'jobs')"
            )
            ((number,),) = self._db.execute(
                "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'jobs' RETURNING seq",
                (highest,),
            ).fetchall()
            self._note_number(number)

    def _note_number(self, number: int) -> None:
        """Note the number of a job, if it is the highest one."""
        if number > self._highest:
            self._highest = number
            with suppress(OSError):  # the number is in jobs.sqlite, too
                os.pwrite(self._lock_file, f"{number:20}".encode(), 0)

    def check(self) -> None:
        """Raise ``StoreLostError`` if the file of the jobs was replaced or cut short."""
        with self._database():
            pass

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to the file, which is still the one that was opened."""
        with self._lock, _store_errors(self._path):
            try:
                file, size = _identity_of(self._path)
            except FileNotFoundError:
                self._write_again()
                file, size = _identity_of(self._path)
            if file != self._identity or size < self._size:
                raise self._lost_error(
                    "cut short" if file == self._identity else "replaced by another file"
                )
            self._size = size
            yield self._db

    def _lost_error(self, fate: str) -> StoreLostError:
        return StoreLostError(
            f"{self._path} was {fate} while the service uses it: no jobs are taken; end the "
            "service, restore the file, and start the service again"
        )

    def _write_again(self) -> None:
        """Write the file of the jobs anew, and use it: it was removed, and is still open here."""
        if not self._path.with_name("lock").exists():
            raise self._lost_error("removed with its folder")
        new, suffixes = self._path.with_name("jobs.sqlite.new"), ("-wal", "-shm")
        for path in (new, *(self._path.with_name(f"jobs.sqlite{suffix}") for suffix in suffixes)):
            path.unlink(missing_ok=True)
        with closing(sqlite3.connect(new)) as copy:
            self._db.backup(copy)
        os.link(new, self._path)  # never in the place of another file
        new.unlink()
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        old, self._db = self._db, self._open()
        self._changes_before += old.total_changes
        old.close()
        _log.warning("%s was removed while the service uses it; it is written again", self._path)

    def close(self) -> None:
        """Close the file; another service may use the folder then."""
        self._db.close()
        os.close(self._lock_file)

    # ---- jobs ------------------------------------------------------------------------------------

    def add(self, request: dict[str, Any], key: str | None = None) -> Record:
        """Queue a job; if a job has the key already, return that one.

        Raises ``KeyReusedError`` if that job is of another request.
        """
        by_key = "SELECT * FROM jobs WHERE key = ?"  # none without a key: NULL equals nothing
        record = self._record(by_key, key)  # first: a known job is returned though the disk is full
        if record is None:
            if added := self._change(
                "INSERT INTO jobs (key, request, input_count, inputs, state, created) "
                "VALUES (?, ?, ?, ?, 'queued', ?) ON CONFLICT (key) DO NOTHING RETURNING *",
                *(key, *_split(request), time()),
            ):
                return added
            record = self._record(by_key, key)
            assert record is not None  # another thread has added it
        if _split(record.request) != _split(request):
            raise KeyReusedError(f"the key {key!r} is that of job {record.number}, another request")
        return record

    def get(self, number: int) -> Record | None:
        """Return a job; None if there is none of this number."""
        return self._record("SELECT * FROM jobs WHERE number = ?", number)

    def summary(self, number: int) -> Record | None:
        """Return a job with the first of its inputs alone; None if there is none."""
        return self._record(f"{_SUMMARY} WHERE number = ?", number)

    def newest(self, limit: int = 100, before: int = 1 << 62) -> list[Record]:
        """Return summaries of the newest jobs with numbers below ``before``, the newest first."""
        text = f"{_SUMMARY} WHERE number < ? ORDER BY number DESC LIMIT ?"
        return [_record(row) for row in self._rows(text, before, limit)]

    def count_queued(self) -> int:
        """Return the number of jobs that wait."""
        ((count,),) = self._rows("SELECT count(*) FROM jobs WHERE state = 'queued'")
        return int(count)

    def start(self) -> Record | None:
        """Begin the job that has waited longest, and return it; None if none waits."""
        return self._change(
            "UPDATE jobs SET state = 'running', attempts = attempts + 1, started = ? WHERE number ="
            " (SELECT min(number) FROM jobs WHERE state = 'queued') RETURNING *",
            time(),
        )

    def end(
        self,
        number: int,
        state: str,
        *,
        report: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        """Note the end of a running job, in a state of ``protocol.ENDED``."""
        if not self._change(
            "UPDATE jobs SET state = ?, report = ?, error = ?, ended = ? "
            "WHERE number = ? AND state = 'running' RETURNING *",
            *(state, _text(report), _text(error), time(), number),
        ):
            raise KeyError(f"job {number} is not running")

    def queue_again(self, number: int, *, counts: bool = True) -> None:
        """Let a running job begin next; ``counts`` says whether its run was an attempt."""
        self._rows(
            "UPDATE jobs SET state = 'queued', started = NULL, attempts = attempts - ? "
            "WHERE number = ? AND state = 'running'",
            not counts,
            number,
        )

    def cancel(self, number: int) -> bool:
        """Cancel a job that waits; return whether it did."""
        cancelled = self._change(
            "UPDATE jobs SET state = 'cancelled', ended = ? WHERE number = ? AND state = 'queued' "
            "RETURNING *",
            time(),
            number,
        )
        return cancelled is not None

    def running_jobs(self) -> list[Record]:
        """Return the jobs that were running when the last service ended."""
        return [_record(row) for row in self._rows("SELECT * FROM jobs WHERE state = 'running'")]

    def forget(self, before: float) -> None:
        """Remove jobs that ended before a time."""
        self._rows("DELETE FROM jobs WHERE ended < ?", before)

    # ---- changes, for clients that follow the service --------------------------------------------

    @property
    def changes(self) -> int:
        """A number that grows with each change of a job."""
        with self._database() as db:
            return self._changes_before + db.total_changes

    def open_states(self) -> dict[int, str]:
        """Return the states of all jobs that have not ended, by their numbers."""
        return dict(
            self._rows("SELECT number, state FROM jobs WHERE state IN ('queued', 'running')")
        )

    def newest_ended(self, limit: int) -> list[int]:
        """Return the numbers of jobs that have ended, the newest first."""
        text = (  # the plus keeps SQLite from sorting all of them
            "SELECT number FROM jobs WHERE +state NOT IN ('queued', 'running') "
            "ORDER BY number DESC LIMIT ?"
        )
        return [number for (number,) in self._rows(text, limit)]

    def numbers_after(self, number: int, limit: int) -> list[int]:
        """Return the numbers of jobs after a number, the oldest first."""
        text = "SELECT number FROM jobs WHERE number > ? ORDER BY number LIMIT ?"
        return [later for (later,) in self._rows(text, number, limit)]

    # ---- statements ------------------------------------------------------------------------------

    def _rows(self, text: str, *values: Any) -> list[Any]:
        """Run a statement, and return its rows."""
        with self._database() as db:
            return db.execute(text, values).fetchall()

    def _record(self, text: str, value: Any) -> Record | None:
        """Return the job that a statement selects; None if there is none."""
        rows = self._rows(text, value)
        return _record(rows[0]) if rows else None

    def _change(self, text: str, *values: Any) -> Record | None:
        """Change one job, notify of it, and return it; None if the statement changes none."""
        with self._database() as db:
            rows = db.execute(text, values).fetchall()
            if not rows:
                return None
            record = _record(rows[0])
            self._note_number(record.number)
            for listener in self._listeners:
                listener(record)
        return record


def _identity_of(path: Path) -> tuple[tuple[int, int], int]:
    """Return the numbers of a file, and its size."""
    status = path.stat()
    return (status.st_dev, status.st_ino), status.st_size


def _record(row: sqlite3.Row) -> Record:
    fields = {name: row[name] for name in Record._fields}
    for name in ("request", "report", "error"):
        if fields[name] is not None:
            fields[name] = json.loads(fields[name])
    if row["inputs"] is not None:
        fields["request"]["inputs"] = json.loads(row["inputs"])
    return Record(**fields)


def _split(request: dict[str, Any]) -> tuple[str, int, str | None]:
    """Return a request with its first input alone, the number of its inputs, and all of them.

    >>> _split({"inputs": ["/a.npy", "/b.npy"]})
    ('{"inputs": ["/a.npy"]}', 2, '["/a.npy", "/b.npy"]')
    """
    inputs = request.get("inputs", [])
    if len(inputs) <= 1:
        return json.dumps(request, sort_keys=True), len(inputs), None
    brief = request | {"inputs": inputs[:1]}
    return json.dumps(brief, sort_keys=True), len(inputs), json.dumps(inputs)


def _split_inputs(db: sqlite3.Connection) -> None:
    """Split the requests of a table that an older version has made."""
    for number, request in db.execute("SELECT number, request FROM jobs").fetchall():
        text = "UPDATE jobs SET request = ?, input_count = ?, inputs = ? WHERE number = ?"
        db.execute(text, (*_split(json.loads(request)), number))


def _text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


@contextmanager
def _store_errors(path: object) -> Iterator[None]:
    """Turn errors of SQLite and of the system into ``StoreError``."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"the jobs cannot be stored: {error}") from error
    except ServiceError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
