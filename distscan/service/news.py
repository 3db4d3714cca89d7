"""What has changed in a service since a client was told last; each client has its own.

::

    snapshot    the service, and its jobs: first, and again if a client has missed too much
    job         a job that is new, or in another state
    progress    how far the running job is
    service     how many jobs wait, and whether jobs are taken

No event waits for its client: news is found in the present state when it is sent.
"""

from time import time
from typing import Any

from .dispatch import Dispatcher, Progress
from .jobs import to_json

_ENDED = 100  # jobs of a snapshot that have ended: the newest
_OPEN = 1000  # jobs of a snapshot that have not: the oldest
_MOST = 100  # jobs that are told one by one; a snapshot tells of more
Event = tuple[str, dict[str, Any]]


class News:
    """The events for one client; one thread at a time calls its methods."""

    def __init__(self, dispatcher: Dispatcher, about: dict[str, Any]) -> None:
        """``about`` is what the service says of itself."""
        self._dispatcher, self._store, self._about = dispatcher, dispatcher.store, about
        # What the client knows.
        self._changes = -1  # the store's count
        self._last = 0  # the newest job
        self._open = dict[int, str]()  # the states of jobs that have not ended
        self._running: tuple[int, Progress] | None = None
        self._service = dict[str, Any]()

    def events(self) -> list[Event]:
        """Return what the client does not know: first a snapshot."""
        first, changes = self._changes < 0, self._store.changes
        before, self._running = self._running, self._dispatcher.running
        numbers = [] if changes == self._changes else self._changed()
        known, self._service = self._service, self._state()
        self._changes = changes
        if first or len(numbers) > _MOST:
            return [("snapshot", self._snapshot())]
        events = [("job", job) for job in self._jobs(numbers)]
        if self._running is not None and self._running != before:
            number, progress = self._running
            if number not in numbers:
                events.append(("progress", {"number": number, "progress": progress._asdict()}))
        if self._service != known:
            events.append(("service", self._service))
        return events

    def _changed(self) -> list[int]:
        """Return the numbers of jobs that are new, or in another state."""
        new = self._store.numbers_after(self._last, _MOST + 1)
        before, self._open = self._open, self._store.open_states()
        self._last = max([self._last, *new])
        known = before.keys() | self._open.keys()
        return sorted({*new} | {n for n in known if before.get(n) != self._open.get(n)})

    def _snapshot(self) -> dict[str, Any]:
        """Return the service and its jobs, the newest first."""
        ended, waiting = self._store.newest_ended(_ENDED), sorted(self._open)
        self._last = max([self._last, *ended, *waiting[-1:]])
        jobs = self._jobs(sorted({*ended, *waiting[:_OPEN]}, reverse=True))
        return {"about": self._about, "now": time(), **self._service, "jobs": jobs}

    def _state(self) -> dict[str, Any]:
        """Return how the service is."""
        queued = sum(state == "queued" for state in self._open.values())
        return {"status": "ending" if self._dispatcher.stopping else "ok", "queued": queued}

    def _jobs(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Return jobs as clients see them."""
        running, progress = self._running or (None, None)
        found = [self._store.summary(number) for number in numbers]
        return [
            to_json(record, progress if record.number == running else None)
            for record in found
            if record is not None
        ]
