"""Whether large results go past the caches on this CPU: measured once, and kept on the disk.

A line of memory that is written whole, past the caches, is not read first. This saves a third of
the traffic. On some CPUs such stores are slower all the same. No bit of a result depends on them.
"""

import functools
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from . import library

VARIABLE = "DISTSCAN_STREAM"
_ROUNDS = 5  # of both ways in turns; the least time of each counts


Scan = Callable[[bool], object]


def go_past_caches(make_scan: Callable[[], Scan]) -> bool:
    """Return whether large results go past the caches.

    ``make_scan()`` returns a function that scans an array larger than the caches, on one thread;
    ``scan(past)`` says whether results go past the caches. It is called if the choice for this CPU
    and level of instructions is not in the file ``cpu.json`` of ``$DISTSCAN_CACHE_DIR`` or
    ``~/.cache/distscan``. ``DISTSCAN_STREAM``, 0 or 1, makes the choice without a measurement.

    Raises ValueError if ``DISTSCAN_STREAM`` is something else.
    """
    setting = os.environ.get(VARIABLE)
    if setting:
        if setting not in {"0", "1"}:
            raise ValueError(f"{VARIABLE}={setting}: it is 0 or 1")
        return setting == "1"
    kernels = library.load()
    return _choice(f"{processor()}, {kernels.level if kernels else 'numpy'}", make_scan)


_choices: dict[str, bool] = {}


def _choice(key: str, make_scan: Callable[[], Scan]) -> bool:
    """Return the choice that this process has made, or another one has written; else make it."""
    if key not in _choices:
        path = _path()
        kept = {} if path is None else _read(path)
        if key not in kept:
            try:
                kept[key] = _measure(make_scan())
            except MemoryError:
                return True
            if path is not None:
                _write(path, kept)
        _choices[key] = kept[key]
    return _choices[key]


def _measure(scan: Scan) -> bool:
    """Return whether a scan is faster if its results go past the caches."""

    def seconds(past: bool) -> float:
        begin = perf_counter()
        scan(past)
        return perf_counter() - begin

    rounds = [(seconds(False), seconds(True)) for _ in range(_ROUNDS)]
    through, past = map(min, zip(*rounds, strict=True))
    return bool(past <= through)


def _path() -> Path | None:
    """Return the file of the choices; None if there is no home directory."""
    setting, caches = os.environ.get("DISTSCAN_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(setting or Path(caches or Path.home() / ".cache") / "distscan") / "cpu.json"
    except RuntimeError:
        return None


def _read(path: Path) -> dict[str, bool]:
    """Return the choices in a file; none if it is missing or damaged."""
    with suppress(OSError, ValueError):
        choices = json.loads(path.read_text("utf-8"))
        if isinstance(choices, dict):
            return {key: value for key, value in choices.items() if isinstance(value, bool)}
    return {}


def _write(path: Path, choices: dict[str, bool]) -> None:
    """Write the choices to a file, which is complete under its name."""
    part = path.with_suffix(f".{uuid4().hex[:8]}")
    with suppress(OSError):  # then the next process measures again
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps(choices, indent=1) + "\n", "utf-8")
        part.replace(path)


@functools.cache
def processor() -> str:
    """Return the name of the processor from ``/proc/cpuinfo``; the machine's if it has none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine
