"""What a job writes: part files, their names, and what is wrong with them."""

import ctypes
import errno
import itertools
import os
import pathlib
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from distscan.core.errors import OutputError
from distscan.core.form import bounds, chunks
from distscan.job import output
from distscan.job.formats import storage
from distscan.job.formats.files import File
from distscan.job.formats.interface import Layout
from support.cases import pairs
from support.jobs import raises, refuse

# ---- what is written appears under its name when it is whole, and whatever is wrong is named -----


def made(path, n=3, code="f"):
    """The part file of a job that has ended since."""
    with output.create(path, Layout(np.dtype(code), (n,))) as file:
        return file


def write(file, *, mapped=False):
    with storage.writing(file, mapped=mapped) as put:
        put(np.ones(file.shape, file.dtype), 0)
        put.sync()


@pytest.mark.parametrize("mapped", [False, True])
def test_written_in_parts(mapped, tmp_path, rng):
    """By two writers, of any length, in any order."""
    for n, code in itertools.product([100, 20_011], "?bhlefdgFD"):
        x = rng.integers(0, 2, n).astype(code)
        ends = [0, *sorted((rng.choice(n - 1, 6, replace=False) + 1).tolist()), n]
        pieces = list(itertools.pairwise(ends))
        rng.shuffle(pieces)
        (path := tmp_path / "y.npy").unlink(missing_ok=True)
        with output.create(path, Layout(x.dtype, (n,))) as part:
            part.check_shared()
            for some in (pieces[:3], pieces[3:]):
                with storage.writing(part, mapped=mapped) as put:
                    for low, high in some:
                        put(x[low:high], low)
            assert not path.exists()
            output.publish(part.path, path, force=False)
        np.testing.assert_array_equal(np.load(path), x)
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


def test_mode_of_what_is_replaced(tmp_path):
    for mode in (0o600, 0o640, 0o444, 0o664):
        path = tmp_path / f"{mode}.npy"
        path.write_text("old")
        path.chmod(mode)
        with output.create(path, Layout(np.dtype("f"), (3,))) as part:
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


@pytest.mark.parametrize("where", ["stat", "open", "fsync", "replace"])
def test_what_the_system_refuses(where, tmp_path, monkeypatch):
    """The file is named; a bad place is an OutputError; nothing hides behind the clean-up."""
    path = tmp_path / "y.npy"
    part = made(path) if where == "replace" else None
    owner = pathlib.Path if where in ("stat", "replace") else os
    work = (lambda: output.publish(part.path, path, force=True)) if part else (lambda: made(path))
    for number in PLACE + ELSE:
        if where == "stat" and number == errno.ENOENT:
            continue  # no file there
        with monkeypatch.context() as patch:
            patch.setattr(owner, where, raises(number))
            if where != "fsync":
                patch.setattr(pathlib.Path, "unlink", raises(errno.EROFS))
            with pytest.raises(OSError if number in ELSE else OutputError) as caught:
                work()
        assert str(caught.value) == f"cannot write {path}: {os.strerror(number)}"
        assert where == "replace" or os.listdir(tmp_path) == []


@pytest.mark.parametrize(("step", "mapped"), [("write", False), ("write", True), ("fsync", False)])
def test_what_the_system_refuses_to_write(step, mapped, tmp_path, monkeypatch):
    for number in PLACE + ELSE:
        part = made(tmp_path / "y.npy")
        with monkeypatch.context() as patch:
            refuse(patch, step, number)
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
        with output.create(path, Layout(np.dtype("f"), (3,))) as part:
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


# ---- writing a part file: by pwrite and by a mapping, in threads, on ranks, and where it is full -

ways = pytest.mark.parametrize("mapped", [False, True], ids=["pwrite", "mapped"])


@pytest.fixture
def part(comm, folder):
    """Make a part file for an array, which every rank sees; return it."""
    held = []

    def make(shape, code, where=folder):
        made = None
        if comm.rank == 0:
            held.append(output.create(where / "y.npy", Layout(np.dtype(code), shape)))
            made = held[-1].__enter__()
        return comm.bcast(made)

    yield make
    for each in held:
        each.__exit__(None, None, None)


def whole(rng, n, code):
    """Any bits at all; bool has two."""
    dtype = np.dtype(code)
    drawn = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)
    return rng.random(n) < 0.5 if dtype.kind == "b" else drawn


@pairs(most=[1, 1000, 70000], code="?bHfdDG", mapped=[False, True], group_by="most")
def test_ranks_and_threads(most, code, mapped, comm, part, rng):
    """Ranges that share pages, in no order; each thread of each rank has some of them."""
    n = int(rng.integers(1, 60)) if most == 1 else int(rng.integers(20000, 60000))
    x, file = whole(rng, n, code), part((n,), code)
    ranges = list(chunks(0, n, int(rng.integers(1, most + 1)) if most > 1 else 1))[:600]
    mine = [ranges[i] for i in rng.permutation(len(ranges))[comm.rank :: comm.size]]
    with storage.writing(file, mapped=mapped) as put:
        put.allocate([bounds(n, comm.size, comm.rank)], 2)

        def work(some):
            for low, high in some:
                put(x[low:high], low)

        threads = [threading.Thread(target=work, args=(mine[i::3],)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        put.sync()
        comm.Barrier()
        last = ranges[-1][1]
        y = np.load(file.path)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert y[:last].tobytes() == x[:last].tobytes()
        assert not y[last:].any()  # what nobody has written


@pytest.mark.one_rank
def test_both_ways_give_the_same_bytes(part, tmp_path, rng):
    found = []
    x = whole(rng, 40000, "f8")
    for mapped in (False, True):
        where = tmp_path / str(mapped)
        where.mkdir()
        file = part((200, 200), "f8", where)
        with storage.writing(file, mapped=mapped) as put:
            assert isinstance(put, storage.MappedWriter) == (mapped and storage.can_populate())
            for low, high in chunks(0, x.size, 777):
                put(x[low:high], low)
        found.append(file.path.read_bytes())
    assert found[0] == found[1]
    assert found[0][-x.nbytes :] == x.tobytes()


@ways
@pytest.mark.one_rank
def test_no_elements(mapped, part):
    file = part((0, 3), "i4")
    before = file.path.read_bytes()
    with storage.writing(file, mapped=mapped) as put:
        put.allocate([(0, 0)], 2)
        put(np.zeros(0, "i4"), 0)
        put.sync()
    assert file.path.read_bytes() == before


@pytest.mark.one_rank
def test_a_part_at_a_time(part, rng, monkeypatch):
    """Signals and full disks let ``pwrite`` write less than it is given."""
    pwrite, sizes = os.pwrite, iter(rng.integers(1, 5000, 1000).tolist())
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, data[: next(sizes)], at))
    x, file = whole(rng, 9999, "i4"), part((9999,), "i4")
    with storage.writing(file, mapped=False) as put:
        put(x[5000:], 5000)
        put(x[:5000], 0)
    assert np.load(file.path).tobytes() == x.tobytes()


@pytest.mark.one_rank
def test_sync(part, monkeypatch, rng):
    """What has been written is on the disk; a file in memory has none."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_ino))
    file = part((10,), "i4")
    synced.clear()
    for mapped, want in ((False, [os.stat(file.path).st_ino]), (True, [])):
        if mapped > storage.can_populate():
            continue
        with storage.writing(file, mapped=mapped) as put:
            put(whole(rng, 10, "i4"), 0)
            put.sync()
        assert synced == want
        synced.clear()


@pytest.mark.one_rank
def test_files_are_closed(part, rng):
    """Also after a fault, with threads that allocate."""
    file, before = part((1 << 20,), "i8"), len(os.listdir("/proc/self/fd"))
    for mapped in (False, True):
        with suppress(ZeroDivisionError), storage.writing(file, mapped=mapped) as put:
            put.allocate([(0, 1 << 20)], 3)
            raise ZeroDivisionError
        del put
        assert not [t for t in threading.enumerate() if t.name.startswith("distscan ")]
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.one_rank
@pytest.mark.skipif(not storage.can_populate(), reason="this system cannot")
def test_allocated_ahead(part, rng, monkeypatch):
    """The pages of the elements are there before they are written, and those of no others."""
    monkeypatch.setattr(storage, "_ALLOCATED", 1 << 16)
    file, n = part((1 << 20,), "i8"), 1 << 20
    with storage.writing(file, mapped=True) as put:
        put.allocate([(n // 4, n // 3), (n // 3, n // 2)], 3)
        end = time.monotonic() + 20
        while file.path.stat().st_blocks * 512 < n // 4 * 8 and time.monotonic() < end:
            time.sleep(0.01)
        assert n // 4 * 8 <= file.path.stat().st_blocks * 512 < n // 2 * 8
        x = whole(rng, n // 4, "i8")
        put(x, n // 4)
    y = np.load(file.path)
    np.testing.assert_array_equal(y[n // 4 : n // 2], x)
    assert not y[: n // 4].any()
    assert not y[n // 2 :].any()


@pytest.mark.one_rank
@pytest.mark.skipif(not storage.can_populate(), reason="this system cannot")
def test_closing_does_not_wait_for_all_pages(part, monkeypatch):
    monkeypatch.setattr(storage, "_ALLOCATED", 4096)
    monkeypatch.setattr(storage.MappedWriter, "_populate", lambda *_: time.sleep(0.01) or 0)
    file = part((1 << 20,), "i8")
    begin = time.monotonic()
    with storage.writing(file, mapped=True) as put:
        put.allocate([(0, 1 << 20)], 2)
    assert time.monotonic() - begin < 5  # of 10


# ---- full file systems -------------------------------------------------------------------------

FULL = """
import sys, threading
from pathlib import Path
import numpy as np
from distscan.job import output
from distscan.job.formats import storage
from distscan.job.formats.interface import Layout

folder, mapped, threads = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
n, x, done, faults = 1 << 17, np.arange(1 << 12), [], []
with output.create(folder / "y.npy", Layout(x.dtype, (n,))) as file:
    with storage.writing(file, mapped=mapped) as put:
        put.allocate([(0, n)], threads)
        def work(first):
            try:
                for low in range(first * x.size, n, 3 * x.size):
                    put(x, low)
                    done.append(low)
            except OSError as error:
                faults.append(error)
        every = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in every: thread.start()
        for thread in every: thread.join()
    print(*faults, sep="\\n")
    y = np.load(file.path, mmap_mode="r")
    assert all((y[low:low + x.size] == x).all() for low in done), done
"""


@pytest.mark.one_rank
@ways
@pytest.mark.parametrize("threads", [0, 2])
def test_a_full_tmpfs(threads, mapped, tmp_path):
    """Every writer raises, and none is killed, although other threads have taken the pages."""
    mount = f'mount -t tmpfs -o size=256k none "{tmp_path}" && exec "$@"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not mount a file system")
    command = [sys.executable, "-c", FULL, str(tmp_path), str(mapped), str(threads)]
    ended = subprocess.run([*inside, *command], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"cannot write {tmp_path}") for line in lines)
    assert all(line.endswith(os.strerror(errno.ENOSPC)) for line in lines)


@pytest.mark.one_rank
@pytest.mark.skipif(not storage.can_populate(), reason="this system cannot")
@pytest.mark.parametrize(
    ("number", "told"), [("EFAULT", "ENOSPC"), ("ENOMEM", "ENOSPC"), ("EIO", "EIO")]
)
def test_a_page_that_cannot_be_allocated(number, told, part, rng, monkeypatch):
    """It is not written to, which would kill the process."""
    file, x = part((5000,), "i4"), whole(rng, 5000, "i4")
    with storage.writing(file, mapped=True) as put:
        put(x[:2000], 0)

        def refuse(*_):
            ctypes.set_errno(getattr(errno, number))
            return -1

        with monkeypatch.context() as patch:
            patch.setattr(storage, "_madvise", refuse)
            put.allocate([(2000, 5000)], 2)  # it is the writers that tell
            text = os.strerror(getattr(errno, told))
            with pytest.raises(OSError, match=f"cannot write {file.path}: {text}"):
                put(x[2000:], 2000)
        assert not np.load(file.path)[2000:].any()
        put(x[2000:], 2000)
    assert np.load(file.path).tobytes() == x.tobytes()


@pytest.mark.one_rank
def test_a_system_that_cannot_allocate(part, rng, monkeypatch):
    """Before Linux 5.14; the file is then written by ``pwrite``."""
    monkeypatch.setattr(storage, "_madvise", lambda *_: -1)
    assert not storage.can_populate()
    file, x = part((5000,), "i4"), whole(rng, 5000, "i4")
    with storage.writing(file, mapped=True) as put:
        put(x, 0)
    assert np.load(file.path).tobytes() == x.tobytes()


@pytest.mark.one_rank
def test_a_file_that_is_gone(tmp_path):
    file = File(tmp_path / "gone.part", np.dtype("i4"), (3,), 128)
    for mapped in (False, True):
        with pytest.raises(output.OutputError, match=r"cannot write .*gone\.part"):
            storage.writing(file, mapped=mapped).__enter__()


# ---- file systems ------------------------------------------------------------------------------


@pytest.mark.one_rank
@pytest.mark.parametrize("path", ["/", "/proc", "/sys", "/dev", "/dev/shm", "/usr", "/tmp", ""])
def test_file_systems(path, tmp_path):
    """As df has it."""
    where = Path(path) if path else tmp_path
    command = ["df", "--output=fstype", str(where)]
    try:
        asked = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"df does not know {where}")
    found, want = storage.file_system(where), asked.stdout.split()[-1]
    assert found in (want, "")
    assert found == want or want in ("btrfs", "overlay")  # their files have device numbers apart
    assert storage.is_in_memory(where) == (found in ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"))


@pytest.mark.one_rank
def test_no_file_system(tmp_path):
    assert storage.file_system(tmp_path / "none") == ""
    assert not storage.is_in_memory(tmp_path / "none")
