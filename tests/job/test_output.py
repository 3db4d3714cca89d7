"""What is written appears under its name when it is whole, and whatever is wrong is named."""

import errno
import itertools
import os
import pathlib
import stat
import subprocess
import sys

import numpy as np
import pytest

from distscan.core.errors import OutputError
from distscan.job import output
from distscan.job.formats import storage
from distscan.job.formats.files import File
from support.pairs import pairs
from support.writers import raises, refuse


def made(path, n=3, code="f"):
    """The part file of a job that has ended since."""
    with output.create(path, np.dtype(code), (n,)) as file:
        return file


def write(file, *, mapped=False):
    with storage.writing(file, mapped=mapped) as put:
        put(np.ones(file.shape, file.dtype), 0)
        put.sync()


@pairs(mapped=[False, True], code="?bhlefdgFD", n=[100, 20_011])
def test_written_in_parts(n, code, mapped, tmp_path, rng):
    """By two writers, of any length, in any order."""
    x = rng.integers(0, 2, n).astype(code)
    ends = [0, *sorted((rng.choice(n - 1, 6, replace=False) + 1).tolist()), n]
    pieces = list(itertools.pairwise(ends))
    rng.shuffle(pieces)
    with output.create(tmp_path / "y.npy", x.dtype, (n,)) as part:
        part.check_shared()
        for some in (pieces[:3], pieces[3:]):
            with storage.writing(part, mapped=mapped) as put:
                for low, high in some:
                    put(x[low:high], low)
        assert not (tmp_path / "y.npy").exists()
        output.publish(part.path, tmp_path / "y.npy", force=False)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x)
    assert os.listdir(tmp_path) == ["y.npy"]


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "y.npy"
    part = made(path)
    path.write_text("came meanwhile")
    for refused in (
        lambda: output.publish(part.path, path, force=False),
        lambda: output.check(path, force=False),
    ):
        with pytest.raises(OutputError, match="force=True replaces it"):
            refused()
    assert path.read_text() == "came meanwhile"
    output.publish(part.path, path, force=True)
    assert np.load(path).shape == (3,)


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    part = made(tmp_path / "y.npy")
    monkeypatch.setattr(pathlib.Path, "hardlink_to", refuse)
    output.publish(part.path, tmp_path / "y.npy", force=False)
    assert os.listdir(tmp_path) == ["y.npy"]
    other = made(tmp_path / "y.npy", 5)
    with pytest.raises(OutputError, match="force=True replaces it"):
        output.publish(other.path, tmp_path / "y.npy", force=False)
    assert np.load(tmp_path / "y.npy").shape == (3,)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o664])
def test_mode_of_what_is_replaced(mode, tmp_path):
    path = tmp_path / "y.npy"
    path.write_text("old")
    path.chmod(mode)
    with output.create(path, np.dtype("f"), (3,)) as part:
        assert stat.S_IMODE(part.path.stat().st_mode) == 0o600  # nobody else reads it meanwhile
        output.publish(part.path, path, force=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_owner_of_what_is_replaced(tmp_path, monkeypatch):
    """Where the group may not be handed on, another one gets no more than everybody."""
    path = tmp_path / "y.npy"
    path.write_text("old")
    path.chmod(0o664)
    part, given = made(path), []
    monkeypatch.setattr(os, "chown", lambda _, *ids: given.append(ids))
    output.publish(part.path, path, force=True)
    old = path.stat()
    assert given == [(old.st_uid, -1), (-1, old.st_gid)]
    assert stat.S_IMODE(old.st_mode) == 0o664
    part = made(path)
    monkeypatch.setattr(os, "chown", raises(errno.EPERM))
    output.publish(part.path, path, force=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_mode_of_a_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        part = made(tmp_path / "y.npy")
        output.publish(part.path, tmp_path / "y.npy", force=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "y.npy").stat().st_mode) == 0o640


def test_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "y.npy", []

    def fsync(opened):
        synced.append((os.readlink(f"/proc/self/fd/{opened}"), path.exists()))

    part = made(path)
    monkeypatch.setattr(os, "fsync", fsync)
    write(part)
    output.publish(part.path, path, force=False)
    assert synced == [(str(part.path), False), (str(tmp_path), True)]


PLACE = [errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENAMETOOLONG]
ELSE = [errno.ENOSPC, errno.EDQUOT, errno.EIO]


@pytest.mark.parametrize("number", PLACE + ELSE)
@pytest.mark.parametrize("where", ["stat", "open", "fsync", "replace"])
def test_what_the_system_refuses(where, number, tmp_path, monkeypatch):
    """The file is named; a bad place is an OutputError; nothing hides behind the clean-up."""
    path = tmp_path / "y.npy"
    part = made(path) if where == "replace" else None
    owner = pathlib.Path if where in ("stat", "replace") else os
    monkeypatch.setattr(owner, where, raises(number))
    if where != "fsync":
        monkeypatch.setattr(pathlib.Path, "unlink", raises(errno.EROFS))
    if where == "stat" and number == errno.ENOENT:
        return  # no file there
    work = (lambda: output.publish(part.path, path, force=True)) if part else (lambda: made(path))
    with pytest.raises(OSError if number in ELSE else OutputError) as caught:
        work()
    assert str(caught.value) == f"cannot write {path}: {os.strerror(number)}"
    monkeypatch.undo()
    assert where == "replace" or os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", PLACE + ELSE)
@pytest.mark.parametrize(("step", "mapped"), [("write", False), ("write", True), ("fsync", False)])
def test_what_the_system_refuses_to_write(step, mapped, number, tmp_path, monkeypatch):
    part = made(tmp_path / "y.npy")
    refuse(monkeypatch, step, number)
    with pytest.raises(OSError if number in ELSE else OutputError) as caught:
        write(part, mapped=mapped)
    assert str(caught.value) == f"cannot write {part.path}: {os.strerror(number)}"


def test_a_part_file_that_cannot_be_removed(tmp_path, monkeypatch):
    """What was wrong first is said."""
    monkeypatch.setattr(os, "fsync", raises(errno.ENOSPC))
    monkeypatch.setattr(pathlib.Path, "unlink", raises(errno.EROFS))
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path / "y.npy")


def test_a_full_disk():
    full = File(pathlib.Path("/dev/full"), np.dtype("f"), (10**6,), 0)
    with pytest.raises(OSError, match="cannot write /dev/full: No space left"):
        write(full)


def test_files_that_grow_too_large(tmp_path):
    """The header, then the size, then the data."""
    import resource

    path, before = tmp_path / "y.npy", resource.getrlimit(resource.RLIMIT_FSIZE)
    part = made(tmp_path / "z.npy", 1000)
    works = [
        (64, lambda: made(path)),
        (1000, lambda: made(path, 1000)),
        (1000, lambda: write(part)),
    ]
    for limit, work in works:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match=r"cannot write .*\.(npy|part): File too large$"):
                work()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == [part.path.name]


def test_outputs_that_cannot_be(tmp_path):
    with pytest.raises(OutputError, match="is a directory"):
        output.check(tmp_path, force=True)
    with pytest.raises(OutputError, match="no directory"):
        output.check(tmp_path / "none" / "y.npy", force=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", tmp_path / "loop" / "y.npy"):
        with pytest.raises(OutputError, match=r"symbolic link|no directory"):
            output.check(path, force=True)


def test_a_folder_that_is_another(tmp_path):
    """The part file that rank 0 has made is not there, or is not the same."""
    (tmp_path / "a").mkdir()
    part = made(tmp_path / "a" / "y.npy")
    with pytest.raises(OutputError, match=r"b is not as rank 0 sees it .*all ranks share"):
        part._replace(path=tmp_path / "b" / part.path.name).check_shared()
    with pytest.raises(OutputError, match="a is not as rank 0 sees it"):
        part._replace(shape=(4,)).check_shared()


# ---- what killed jobs have left ------------------------------------------------------------

HOLD = """
import fcntl, os, sys
with open(f"{sys.argv[1]}{os.getpid()}-0123abcd.part", "xb") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    print(os.path.basename(stream.name), flush=True)
    sys.stdin.readline()
"""


def maker(path):
    """Another process that holds a part file, and the file's name."""
    held = path.with_name(f".{path.name}.distscan-{output.platform.node()}-")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(held)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    return process, process.stdout.readline().strip()


def end(process):
    process.kill()
    process.communicate()


def test_what_a_killed_job_has_left(tmp_path, monkeypatch):
    path = tmp_path / "y.npy"
    process, left = maker(path)
    try:
        assert left.startswith(f".y.npy.distscan-{output.platform.node()}-{process.pid}-")
        with output.create(path, np.dtype("f"), (3,)) as part:
            mine = part.path
            made(path)
            assert mine.exists()  # locked, too
        assert (tmp_path / left).exists()  # it lives
        with monkeypatch.context() as patch:  # also where there are no locks
            patch.setattr(output.fcntl, "flock", raises(errno.ENOSYS))
            made(path)
        assert (tmp_path / left).exists()
        # Nor is it robbed where its number is not seen, as from another container.
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", raises(errno.ESRCH))
            made(path)
        assert (tmp_path / left).exists()
    finally:
        end(process)
    assert not mine.exists()  # of this process, and without a lock
    made(tmp_path / "other.npy")
    assert (tmp_path / left).exists()
    with monkeypatch.context() as patch:
        patch.setattr(output.platform, "node", lambda: "elsewhere")
        made(path)
    assert (tmp_path / left).exists()  # whoever runs on another host is not known here
    with monkeypatch.context() as patch:  # without locks the process counts
        patch.setattr(output.fcntl, "flock", raises(errno.ENOSYS))
        last = made(path).path
    assert not (tmp_path / left).exists()
    assert last.exists()


@pytest.mark.parametrize("name", ["y" * 255, "é" * 127, "-y*[a].npy", "y\n.npy", b"\xff.npy"],
                         ids=["long", "accents", "signs", "newline", "bytes"])  # fmt: skip
def test_odd_names(name, tmp_path, monkeypatch):
    path = tmp_path / os.fsdecode(name)
    monkeypatch.setattr(output.platform, "node", lambda: "h" * 64)
    made(path)
    part = made(path)
    assert os.listdir(tmp_path) == [part.path.name]  # the first was removed
    output.publish(part.path, path, force=False)
    assert os.listdir(tmp_path) == [path.name]
