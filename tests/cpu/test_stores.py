"""Whether large results go past the caches: measured once, kept in a file, no bit depends on it."""

import json

import pytest

from distscan.cpu import library
from support.processes import python

pytestmark = [
    pytest.mark.one_rank,
    pytest.mark.skipif(library.load() is None, reason="no compiled kernels"),
]

LARGE = """
import hashlib, numpy, distscan
x = numpy.random.default_rng(0).normal(size=1 << 21)
print(hashlib.sha256(distscan.scan(x)).hexdigest())
"""
SMALL = LARGE.replace("1 << 21", "1000")


def result(program, folder, **variables):
    """The digest of a scan in a new process."""
    done = python(program, DISTSCAN_CACHE_DIR=str(folder), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_choice_is_kept(tmp_path):
    """Large results alone need it; a damaged file is written again; other choices stay."""
    path = tmp_path / "folder" / "cpu.json"
    result(SMALL, path.parent)
    assert not path.exists()
    bits = result(LARGE, path.parent)
    ((key, choice),) = json.loads(path.read_text()).items()
    assert type(choice) is bool
    path.write_text(json.dumps({key: not choice, "another": True}))
    assert result(LARGE, path.parent) == bits
    assert json.loads(path.read_text()) == {key: not choice, "another": True}
    path.write_text("[")
    assert result(LARGE, path.parent) == bits
    assert json.loads(path.read_text()).keys() == {key}


def test_the_choice_by_the_environment(tmp_path):
    bits = {result(LARGE, tmp_path, DISTSCAN_STREAM=choice) for choice in "01"}
    assert len(bits) == 1
    assert not list(tmp_path.iterdir())
    done = python(LARGE, DISTSCAN_STREAM="yes")
    assert "ValueError: DISTSCAN_STREAM=yes: it is 0 or 1" in done.stderr


def test_no_folder(tmp_path):
    (tmp_path / "file").touch()
    result(LARGE, tmp_path / "file")
