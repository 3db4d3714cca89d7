"""How many files of distscan a repeated call passes through: who follows one opens these."""

import sys
from pathlib import Path

import numpy as np
import pytest

import distscan

MOST = 6
FOLDER = Path(distscan.__file__).parent


def entered(call):
    """Return the files of distscan whose functions a call enters."""
    files = set()

    def look(frame, event, _):
        if event == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(FOLDER):
                files.add(str(file.relative_to(FOLDER)))

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


FORMS = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "initial": {"initial": 3.0},
    "reverse": {"reverse": True},
    "max": {"op": "max"},
    "logaddexp": {"op": "logaddexp"},
    "reduce-scan": {"strategy": "reduce-scan"},
    "scan-add": {"strategy": "scan-add"},
    "axis 0": {"axis": 0},
    "axis 1": {"axis": 1},
    "rows, reverse": {"axis": 0, "reverse": True, "exclusive": True},
    "flags": {"segments": "flags"},
    "keys": {"segments": "keys"},
    "flags, reverse": {"segments": "flags", "reverse": True},
    "keys, exclusive": {"segments": "keys", "exclusive": True, "initial": 1.0},
}


@pytest.mark.parametrize("form", FORMS)
def test_few_files_are_entered(form, xp, comm, rng):
    options = dict(FORMS[form])
    n = 1000 + comm.rank
    x = xp.asarray(rng.random((n, 3)) if "axis" in options else rng.random(n))
    segments = {"flags": rng.random(n) < 0.1, "keys": np.sort(rng.integers(0, 9, n))}
    if "segments" in options:
        options["segments"] = xp.asarray(segments[options["segments"]])
    for _ in range(2):
        distscan.scan(x, comm=comm, **options)
    files = entered(lambda: distscan.scan(x, comm=comm, **options))
    assert "scan.py" in files
    assert len(files) <= MOST, sorted(files)
