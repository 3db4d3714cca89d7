"""What is kept on disk: entries that are whole, in a folder that nobody else may write."""

import os
import stat
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from distscan.cuda import nvrtc

KEY = "5" * 64
BUILT = bytes(range(256)) * 5, "ptxas info: 32 registers, µ\n"
STRANGER = 54321


class Maker:
    """Makes entries, and counts them."""

    def __init__(self, built=BUILT):
        self.built, self.calls = built, 0

    def __call__(self):
        self.calls += 1
        return self.built

    def kept(self, key=KEY):
        """Whether it had to be made; in any case it is right."""
        before = self.calls
        assert nvrtc.cached(key, self) == self.built
        return self.calls == before


@pytest.fixture
def fresh():
    """As in a new process; what comes is called to begin another."""
    nvrtc.folder.cache_clear()
    yield nvrtc.folder.cache_clear
    nvrtc.folder.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch, fresh):
    """A folder that is not there yet."""
    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "a" / "cache"))
    return tmp_path / "a" / "cache"


def entry_of(cache, key=KEY):
    return cache / f"{key}.kernel"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def give_away(path, monkeypatch):
    """Let a file or folder be somebody else's."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def test_made_once(cache):
    maker = Maker()
    assert not maker.kept()
    assert maker.kept()
    assert not maker.kept("6" * 64)
    assert {path.suffix for path in cache.iterdir()} == {".kernel", ".lock"}
    assert not Maker((b"", "")).kept("7" * 64)
    assert Maker((b"", "")).kept("7" * 64)


def test_one_makes_and_the_others_wait(cache):
    maker = Maker()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: nvrtc.cached(KEY, maker), range(8)))
    assert maker.calls == 1
    assert set(built) == {BUILT}


DAMAGE = {
    "empty": lambda whole: b"",
    "cut in the lengths": lambda whole: whole[:40],
    "cut in the code": lambda whole: whole[: len(whole) // 2],
    "cut by one": lambda whole: whole[:-1],
    "longer": lambda whole: whole + b"\0",
    "zeros behind the start": lambda whole: whole[:100] + bytes(len(whole) - 100),
    "all zeros": lambda whole: bytes(len(whole)),
    "one bit of the code": lambda whole: whole[:300] + bytes([whole[300] ^ 4]) + whole[301:],
    "one bit of the report": lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
    "one bit of a length": lambda whole: whole[:32] + bytes([whole[32] ^ 1]) + whole[33:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(damage, cache):
    maker, entry = Maker(), entry_of(cache)
    maker.kept()
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](whole))
    assert not maker.kept()
    assert entry.read_bytes() == whole
    assert maker.kept()


def test_lengths_that_do_not_fit(cache):
    """A right digest of wrong lengths: no entry."""
    for lengths in ((5, 5), (2**64 - 1, 1), (0, 2**63)):
        content = nvrtc._LENGTHS.pack(*lengths) + b"123456789"
        file = nvrtc.digest(KEY, content) + content
        assert nvrtc.unpacked(KEY, file) is None


def test_the_entry_of_another_kernel(cache):
    """Under a wrong name, such as a link's, an entry is not taken."""
    other = Maker((b"other", ""))
    other.kept("6" * 64)
    os.link(entry_of(cache, "6" * 64), entry_of(cache))
    assert not Maker().kept()
    assert other.kept("6" * 64)


def test_a_report_that_is_no_text(cache):
    maker = Maker((b"code", "one \ufffd two"))
    maker.kept()
    content = nvrtc._LENGTHS.pack(4, 9) + b"code" + b"one \xff two"
    entry_of(cache).write_bytes(nvrtc.digest(KEY, content) + content)
    assert maker.kept()
    assert nvrtc.cached("6" * 64, Maker((b"code", "\udcff")))[0] == b"code"


def test_on_the_disk_before_it_has_its_name(cache, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(file):
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(
        nvrtc.Path, "replace", lambda *paths: done.append("name") or replace(*paths)
    )
    assert not Maker().kept()
    assert done == ["file", "name", "folder"]
    assert Maker().kept()


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_full_disk_is_no_fault(call, cache, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, call, fails(OSError(28, "No space left on device")))
        assert not Maker().kept()
    assert [path.suffix for path in cache.iterdir()] in ([".lock"], [])
    assert not Maker().kept()
    assert Maker().kept()


def test_no_locks(cache, monkeypatch):
    """A file system without them: made all the same, and at once."""
    monkeypatch.setattr(nvrtc.fcntl, "flock", fails(OSError(37, "No locks available")))
    assert not Maker().kept()
    assert Maker().kept()


def test_a_lock_that_is_never_given_back(cache, monkeypatch):
    monkeypatch.setattr(nvrtc, "time", Mock(**{"monotonic.side_effect": [0, 1, 999]}))
    monkeypatch.setattr(nvrtc.fcntl, "flock", fails(BlockingIOError()))
    assert not Maker().kept()


@pytest.mark.parametrize("where", ["home", "folder"])
def test_nowhere_to_keep(where, tmp_path, monkeypatch, fresh):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DISTSCAN_CACHE_DIR", raising=False)
    if where == "home":
        error = RuntimeError("Could not determine home")
        monkeypatch.setattr(nvrtc.Path, "home", fails(error))
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "file"))
    maker = Maker()
    assert not maker.kept()
    assert not maker.kept()


# ---- whose folder it is --------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_a_new_folder_is_ones_own(umask, cache):
    before = os.umask(umask)
    try:
        assert not Maker().kept()
    finally:
        os.umask(before)
    assert mode(cache) == 0o700
    assert mode(entry_of(cache)) == 0o600
    assert Maker().kept()


def refused(cache, fresh):
    """Nothing is read from there or written, which is said once."""
    files = {path: path.read_bytes() for path in cache.iterdir()}
    fresh()
    maker = Maker((b"mine", ""))
    with pytest.warns(RuntimeWarning, match=f"other users may write {cache}.* DISTSCAN_CACHE_DIR"):
        assert not maker.kept()
    assert not maker.kept()  # a second warning would be an error
    assert files == {path: path.read_bytes() for path in cache.iterdir()}


@pytest.mark.parametrize("bits", [0o775, 0o757, 0o1777, 0o720])
def test_a_folder_that_others_may_write(bits, cache, fresh):
    Maker().kept()
    cache.chmod(bits)
    refused(cache, fresh)
    assert mode(cache) == bits


@pytest.mark.parametrize("given", [True, False])
def test_the_folder_of_another_user(given, cache, fresh, monkeypatch):
    if not given:
        monkeypatch.delenv("DISTSCAN_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
        cache = cache.parent / "distscan"
    Maker().kept()
    give_away(cache, monkeypatch)
    refused(cache, fresh)


def test_the_default_folder_is_closed_to_others(tmp_path, monkeypatch, fresh):
    """Earlier versions made it by the umask."""
    monkeypatch.delenv("DISTSCAN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "distscan"
    cache.mkdir()
    cache.chmod(0o775)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Maker().kept()
        assert Maker().kept()
    assert mode(cache) == 0o755


def test_the_entry_of_another_user(cache, monkeypatch):
    maker = Maker()
    maker.kept()
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    give_away(entry_of(cache), monkeypatch)
    assert not maker.kept()
    assert entry_of(cache).stat().st_uid == os.geteuid()
    assert maker.kept()


def test_an_entry_that_others_may_write(cache):
    maker = Maker()
    maker.kept()
    entry_of(cache).chmod(0o664)
    assert not maker.kept()
    assert mode(entry_of(cache)) == 0o600


def test_a_link_to_ones_own_folder(tmp_path, monkeypatch, fresh):
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "link"))
    assert not Maker().kept()
    assert Maker().kept()


# ---- a folder that cannot be written -------------------------------------------------------


def test_a_filled_cache_that_cannot_be_written(cache, fresh, monkeypatch):
    """Nothing can be made there; by mode alone, root could."""
    Maker().kept()
    files = sorted(cache.iterdir())
    fresh()
    path, opened = nvrtc.Path, nvrtc.Path.open
    closed = fails(OSError(30, "Read-only file system"))
    for place, call in ((os, "open"), (path, "mkdir"), (path, "chmod"), (path, "replace")):
        monkeypatch.setattr(place, call, closed)
    monkeypatch.setattr(path, "open", lambda p, how: opened(p, how) if how == "rb" else closed())
    monkeypatch.setattr(os, "access", lambda name, how: how != os.W_OK)
    assert Maker().kept()
    other = Maker((b"other", ""))
    assert not other.kept("6" * 64)
    assert not other.kept("6" * 64)
    assert sorted(cache.iterdir()) == files
