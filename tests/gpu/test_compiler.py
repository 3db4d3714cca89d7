"""Faults that a compiler finds are named; code is compiled once, and stored on disk."""

import os
import shutil
import stat
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from distscan.core import operators
from distscan.core.errors import KernelError
from support.compiling import ptx, strategy_kernels, textbook

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import TextbookPolicy
from distscan.cuda import kernel

pytestmark = pytest.mark.one_rank

# ---- What does not compile is said; what does is compiled once, by whichever NVRTC there is ------

REDUCE = strategy_kernels([("sum", "f")], "90")[1]


@pytest.mark.compile
@pytest.mark.parametrize(
    ("text", "line"),
    [("a + nonsense", 1), ("a  // a comment\n + nonsense", 2), ("a +;", 1),
     ("const T c = b;\nreturn c + nonsense;", 2)],
)  # fmt: skip
def test_compiler_errors_show_the_line(text, line):
    broken = operators.Operator('"broken"', np.add, text)
    with pytest.raises(KernelError) as caught:
        strategy_kernels([(broken, "f")], "90")[0].build("90")
    assert f"operator _broken_({line}): error" in str(caught.value)
    assert text.splitlines()[line - 1].strip() in str(caught.value)


@pytest.mark.compile
def test_an_operator_without_a_cuda_form():
    with pytest.raises(TypeError, match="operator 'mine' has no CUDA form"):
        strategy_kernels([(operators.Operator("mine", lambda a, b: b), "f")], "90")


@pytest.mark.compile
def test_a_field_that_a_gpu_does_not_take():
    op = operators.Operator("mine", lambda a, b: b, "b", arity=2)
    with pytest.raises(TypeError, match="float128 does not exist on a GPU"):
        strategy_kernels([(op, np.dtype([("x0", "f8"), ("x1", "g")]))], "90")


@pytest.fixture
def new_process(tmp_path, monkeypatch):
    """Begin with an empty cache; the call that is returned forgets what a process remembers."""
    remembered = (
        kernel.sources,
        kernel.compiler,
        kernel.installed_compiler,
        kernel.cache_folder,
    )

    def forget():
        for function in remembered:
            function.cache_clear()

    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield forget
    monkeypatch.undo()
    forget()


@pytest.fixture
def compiled(monkeypatch, new_process):
    """The calls of the compiler."""
    calls, compile_once = [], kernel.nvrtc.compileProgram

    def counted(*arguments):
        calls.append(arguments)
        return compile_once(*arguments)

    monkeypatch.setattr(kernel.nvrtc, "compileProgram", counted)
    return calls


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the kernels' sources, which the compiler is given in their place."""
    folder = tmp_path / "kernels"
    shutil.copytree(kernel.source_folder(), folder)
    monkeypatch.setattr(kernel, "source_folder", lambda: folder)
    return folder


@pytest.mark.compile
def test_one_process_compiles_and_the_others_read(compiled):
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: REDUCE.build("90"), range(4)))
    assert len(compiled) == 1
    assert len(set(built)) == 1
    assert built[0][0].startswith(b"\x7fELF")
    assert "registers" in built[0][1]
    other = REDUCE._replace(macros=(*REDUCE.macros, ("DISTSCAN_ROWS", 1)))
    assert other.build("90") != built[0]
    assert len(compiled) == 2


@pytest.mark.compile
def test_operators_of_ones_own_are_told_apart(compiled):
    """By the text of their CUDA forms, under one name."""
    built = {
        strategy_kernels([(operators.Operator("mine", np.add, cuda), "f")], "90")[0].build("90")[0]
        for cuda in ("a + b", "a * b", "a + b")
    }
    assert len(compiled) == len(built) == 2


@pytest.mark.compile
def test_a_truncated_entry_is_not_loaded(compiled, tmp_path):
    code, _ = REDUCE.build("90")
    (entry,) = (tmp_path / "cache").glob("*.kernel")
    entry.write_bytes(entry.read_bytes()[:5000])
    assert REDUCE.build("90")[0] == code
    assert len(compiled) == 2


@pytest.mark.compile
def test_sources_change_under_a_process(compiled, copied, new_process):
    """It goes on with those it has read, under their key; the next one reads the new ones."""
    other = REDUCE._replace(macros=(*REDUCE.macros, ("DISTSCAN_UNUSED", 1)))
    old = REDUCE.build("90")
    source = copied / "reduce.cu"
    text = source.read_text()
    source.write_text(text.replace("distscan_reduce", "distscan_other"))
    assert b"distscan_other" not in other.build("90")[0]
    new_process()
    assert b"distscan_other" in REDUCE.build("90")[0]
    source.write_text(text)
    new_process()
    compiled.clear()
    assert REDUCE.build("90") == old
    assert b"distscan_other" not in other.build("90")[0]
    assert not compiled


@pytest.mark.compile
def test_nothing_is_read_from_the_disk(copied, new_process, tmp_path, monkeypatch):
    """Kernels that include from folders and across them, once the sources are gone."""
    kernels = {
        request.entry: request
        for request in [REDUCE, *textbook([("sum", "f")], "90", TextbookPolicy("Blelloch"))]
    }
    assert "textbook" in kernels
    kernel.sources()
    shutil.rmtree(copied)
    for name in ("config.cuh", "tile.cuh", "steps.cuh", "combine.h"):
        (tmp_path / name).write_text("#error this is not it")
    monkeypatch.chdir(tmp_path)
    for request in kernels.values():
        assert request.build("90")[0].startswith(b"\x7fELF")


@pytest.mark.compile
def test_every_include_is_known():
    texts = kernel.sources().texts
    for name, text in texts.items():
        for _, included in kernel._INCLUDE.findall(text):
            assert included in texts or included.endswith(".h"), name


def other(library):
    """The library of another build of NVRTC."""
    (size, *rest), *files = library
    return ((size + 1, *rest), *files)


@pytest.mark.compile
@pytest.mark.parametrize("pip", [True, False])
def test_builds_of_the_compiler_are_told_apart(pip, compiled, monkeypatch):
    """Also if NVRTC is not where pip installs it."""
    library = kernel.compiler()
    if not pip:
        monkeypatch.setattr(kernel, "installed_compiler", lambda: None)
    REDUCE.build("90")
    monkeypatch.setattr(kernel, "compiler", lambda: other(library))
    monkeypatch.setattr(kernel, "installed_compiler", lambda: other(library) if pip else None)
    REDUCE.build("90")
    assert len(compiled) == 2


@pytest.mark.compile
def test_a_library_that_is_not_the_one_that_is_installed(compiled, monkeypatch):
    """An entry has the name of the library that made it."""
    library = kernel.compiler()
    monkeypatch.setattr(kernel, "installed_compiler", lambda: other(library))
    REDUCE.build("90")
    REDUCE.build("90")
    assert len(compiled) == 1
    monkeypatch.setattr(kernel, "compiler", lambda: other(library))
    REDUCE.build("90")
    assert len(compiled) == 2


@pytest.mark.compile
def test_nvrtc_is_not_loaded_to_read_an_entry(new_process, monkeypatch):
    """Where pip has installed it."""
    if kernel.installed_compiler() is None:
        pytest.skip("NVRTC is not in the folders of pip")
    built = REDUCE.build("90")
    new_process()
    monkeypatch.setattr(kernel, "compiler", fails(AssertionError("NVRTC was loaded")))
    assert REDUCE.build("90") == built


@pytest.mark.parametrize("number", [0, 2])
def test_where_pip_has_several_libraries_or_none(number, tmp_path, monkeypatch, new_process):
    """None is taken for the one that CuPy loads."""
    for i in range(number):
        library = tmp_path / "nvidia" / str(i) / "lib" / "libnvrtc.so.13"
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setattr(kernel.driver, "get_build_version", lambda: 13000)
    spec = Mock(submodule_search_locations=[str(tmp_path / "nvidia")]) if number else None
    monkeypatch.setattr(kernel.importlib.util, "find_spec", lambda name: spec)
    assert kernel.installed_compiler() is None


class AbsentGpu:
    """The current GPU, and the code that is loaded onto it."""

    def __init__(self, monkeypatch):
        self.loaded, self.threads = [], []
        gpu = Mock()
        gpu.cuda.Device.return_value = Mock(compute_capability="90", id=0)
        gpu.cuda.function.Module = lambda: Mock(
            load=self.load, get_function=lambda name: Mock(ptr=len(self.loaded))
        )
        monkeypatch.setattr(kernel, "cupy", gpu)
        monkeypatch.setattr(kernel, "_functions", {})

    def load(self, code):
        self.loaded.append(code)
        self.threads.append(threading.get_ident())


def plain_kernel(entry):
    return kernel.Kernel(entry, {}, np.dtype("f4"), 32)


def test_kernels_are_compiled_side_by_side(monkeypatch):
    """And loaded by the thread that makes them, in their order."""
    gpu, together = AbsentGpu(monkeypatch), threading.Barrier(2)

    def build(entry, macros, arch):
        together.wait(20)
        return entry.encode(), ""

    monkeypatch.setattr(kernel, "find", lambda *request: None)
    monkeypatch.setattr(kernel, "build", build)
    with kernel.side_by_side():
        with kernel.side_by_side():
            kernels = [plain_kernel("add")]
        kernels.append(plain_kernel("reduce"))
        assert gpu.loaded == []
    assert [each.function for each in kernels] == [1, 2]
    assert gpu.loaded == [b"add.cu", b"reduce.cu"]
    assert set(gpu.threads) == {threading.get_ident()}
    with kernel.side_by_side():
        assert plain_kernel("add").function == 1
    assert len(gpu.loaded) == 2


def test_kernels_that_are_compiled_are_loaded_at_once(monkeypatch):
    gpu = AbsentGpu(monkeypatch)
    monkeypatch.setattr(kernel, "find", lambda entry, *_: (entry.encode(), ""))
    with kernel.side_by_side():
        assert plain_kernel("add").function == 1
        assert gpu.loaded == [b"add.cu"]


def test_a_kernel_that_does_not_compile_beside_another(monkeypatch):
    gpu, calls = AbsentGpu(monkeypatch), []

    def build(entry, macros, arch):
        calls.append(entry)
        if entry == "add.cu":
            raise KernelError("wrong")
        return entry.encode(), ""

    monkeypatch.setattr(kernel, "find", lambda *request: None)
    monkeypatch.setattr(kernel, "build", build)

    @kernel.side_by_side()
    def make():
        return plain_kernel("reduce"), plain_kernel("add")

    with pytest.raises(KernelError, match="wrong"):
        make()
    assert sorted(calls) == ["add.cu", "reduce.cu"]
    assert plain_kernel("reduce").function == len(gpu.loaded)  # of a block that has ended


@pytest.mark.compile
def test_words_of_the_compiler_that_are_no_text(monkeypatch, new_process):
    def cut(program):
        return b"info \xc2".decode()

    monkeypatch.setattr(kernel.nvrtc, "getProgramLog", cut)
    assert REDUCE.build("90")[1] == "info \ufffd"
    with pytest.raises(KernelError, match="info \ufffd"):
        strategy_kernels([(operators.Operator("mine", np.add, "nonsense"), "f")], "90")[0].build(
            "90"
        )


@pytest.mark.compile
def test_a_gpu_older_than_nvrtc():
    with pytest.raises(KernelError, match="compute capability, 35, is older"):
        REDUCE.build("35")


@pytest.mark.compile
def test_an_older_nvrtc_gives_ptx():
    assert ptx(REDUCE).startswith(".visible .entry distscan_reduce")


# ---- What is kept on disk: entries that are whole, in a folder that nobody else may write --------

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

    def reuses(self, key=KEY):
        """Return whether the entry is reused, and not made; in any case it is right."""
        before = self.calls
        assert kernel.load_or_make(key, self) == self.built
        return self.calls == before


@pytest.fixture
def fresh():
    """As in a new process; what comes is called to begin another."""
    kernel.cache_folder.cache_clear()
    yield kernel.cache_folder.cache_clear
    kernel.cache_folder.cache_clear()


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
    assert not maker.reuses()
    assert maker.reuses()
    assert not maker.reuses("6" * 64)
    assert {path.suffix for path in cache.iterdir()} == {".kernel", ".lock"}
    assert not Maker((b"", "")).reuses("7" * 64)
    assert Maker((b"", "")).reuses("7" * 64)


def test_one_makes_and_the_others_wait(cache):
    maker = Maker()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: kernel.load_or_make(KEY, maker), range(8)))
    assert maker.calls == 1
    assert set(built) == {BUILT}


DAMAGE = {
    "empty": lambda file: b"",
    "cut in the lengths": lambda file: file[:40],
    "cut in the code": lambda file: file[: len(file) // 2],
    "cut by one": lambda file: file[:-1],
    "longer": lambda file: file + b"\0",
    "zeros behind the start": lambda file: file[:100] + bytes(len(file) - 100),
    "all zeros": lambda file: bytes(len(file)),
    "one bit of the code": lambda file: file[:300] + bytes([file[300] ^ 4]) + file[301:],
    "one bit of the report": lambda file: file[:-9] + bytes([file[-9] ^ 1]) + file[-8:],
    "one bit of a length": lambda file: file[:32] + bytes([file[32] ^ 1]) + file[33:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(damage, cache):
    maker, entry = Maker(), entry_of(cache)
    maker.reuses()
    file = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](file))
    assert not maker.reuses()
    assert entry.read_bytes() == file
    assert maker.reuses()


def write_entry(cache, lengths, content):
    """An entry with a right digest."""
    content = kernel._LENGTHS.pack(*lengths) + content
    entry_of(cache).write_bytes(kernel.digest(KEY, content) + content)


@pytest.mark.parametrize("lengths", [(5, 5), (2**64 - 1, 1), (0, 2**63)])
def test_lengths_that_do_not_fit(lengths, cache):
    maker = Maker()
    maker.reuses()
    write_entry(cache, lengths, b"123456789")
    assert not maker.reuses()
    assert maker.reuses()


def test_the_entry_of_another_kernel(cache):
    """Under a wrong name, such as a link's, an entry is not taken."""
    other = Maker((b"other", ""))
    other.reuses("6" * 64)
    os.link(entry_of(cache, "6" * 64), entry_of(cache))
    assert not Maker().reuses()
    assert other.reuses("6" * 64)


def test_a_report_that_is_no_text(cache):
    maker = Maker((b"code", "one \ufffd two"))
    maker.reuses()
    write_entry(cache, (4, 9), b"code" + b"one \xff two")
    assert maker.reuses()
    assert kernel.load_or_make("6" * 64, Maker((b"code", "\udcff")))[0] == b"code"


def test_on_the_disk_before_it_has_its_name(cache, monkeypatch):
    order, fsync, replace = [], os.fsync, os.replace

    def synced(file):
        order.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(
        kernel.Path, "replace", lambda *paths: order.append("name") or replace(*paths)
    )
    assert not Maker().reuses()
    assert order == ["file", "name", "folder"]
    assert Maker().reuses()


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_full_disk_is_no_fault(call, cache, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, call, fails(OSError(28, "No space left on device")))
        assert not Maker().reuses()
    assert [path.suffix for path in cache.iterdir()] in ([".lock"], [])
    assert not Maker().reuses()
    assert Maker().reuses()


def test_no_locks(cache, monkeypatch):
    """A file system without them: made all the same, and at once."""
    monkeypatch.setattr(kernel.fcntl, "flock", fails(OSError(37, "No locks available")))
    assert not Maker().reuses()
    assert Maker().reuses()


def test_a_lock_that_is_never_given_back(cache, monkeypatch):
    monkeypatch.setattr(kernel, "time", Mock(**{"monotonic.side_effect": [0, 1, 999]}))
    monkeypatch.setattr(kernel.fcntl, "flock", fails(BlockingIOError()))
    assert not Maker().reuses()


@pytest.mark.parametrize("where", ["home", "folder"])
def test_nowhere_to_keep(where, tmp_path, monkeypatch, fresh):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DISTSCAN_CACHE_DIR", raising=False)
    if where == "home":
        error = RuntimeError("Could not determine home")
        monkeypatch.setattr(kernel.Path, "home", fails(error))
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "file"))
    maker = Maker()
    assert not maker.reuses()
    assert not maker.reuses()


# ---- whose folder it is --------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_a_new_folder_is_ones_own(umask, cache):
    before = os.umask(umask)
    try:
        assert not Maker().reuses()
    finally:
        os.umask(before)
    assert mode(cache) == 0o700
    assert mode(entry_of(cache)) == 0o600
    assert Maker().reuses()


def refused(cache, fresh):
    """Nothing is read from there or written, which is said once."""
    files = {path: path.read_bytes() for path in cache.iterdir()}
    fresh()
    maker = Maker((b"mine", ""))
    with pytest.warns(RuntimeWarning, match=f"other users may write {cache}.* DISTSCAN_CACHE_DIR"):
        assert not maker.reuses()
    assert not maker.reuses()  # a second warning would be an error
    assert files == {path: path.read_bytes() for path in cache.iterdir()}


@pytest.mark.parametrize("bits", [0o775, 0o757, 0o1777, 0o720])
def test_a_folder_that_others_may_write(bits, cache, fresh):
    Maker().reuses()
    cache.chmod(bits)
    refused(cache, fresh)
    assert mode(cache) == bits


@pytest.mark.parametrize("of_variable", [True, False])
def test_the_folder_of_another_user(of_variable, cache, fresh, monkeypatch):
    if not of_variable:
        monkeypatch.delenv("DISTSCAN_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
        cache = cache.parent / "distscan"
    Maker().reuses()
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
        assert not Maker().reuses()
        assert Maker().reuses()
    assert mode(cache) == 0o755


def test_the_entry_of_another_user(cache, monkeypatch):
    maker = Maker()
    maker.reuses()
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    give_away(entry_of(cache), monkeypatch)
    assert not maker.reuses()
    assert entry_of(cache).stat().st_uid == os.geteuid()
    assert maker.reuses()


def test_an_entry_that_others_may_write(cache):
    maker = Maker()
    maker.reuses()
    entry_of(cache).chmod(0o664)
    assert not maker.reuses()
    assert mode(entry_of(cache)) == 0o600


def test_a_link_to_ones_own_folder(tmp_path, monkeypatch, fresh):
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "link"))
    assert not Maker().reuses()
    assert Maker().reuses()


# ---- a folder that cannot be written -------------------------------------------------------------


def test_a_filled_cache_that_cannot_be_written(cache, fresh, monkeypatch):
    """Nothing can be made there; by mode alone, root could."""
    Maker().reuses()
    files = sorted(cache.iterdir())
    fresh()
    path, opened = kernel.Path, kernel.Path.open
    closed = fails(OSError(30, "Read-only file system"))
    for place, call in ((os, "open"), (path, "mkdir"), (path, "chmod"), (path, "replace")):
        monkeypatch.setattr(place, call, closed)
    monkeypatch.setattr(path, "open", lambda p, how: opened(p, how) if how == "rb" else closed())
    monkeypatch.setattr(os, "access", lambda name, how: how != os.W_OK)
    assert Maker().reuses()
    other = Maker((b"other", ""))
    assert not other.reuses("6" * 64)
    assert not other.reuses("6" * 64)
    assert sorted(cache.iterdir()) == files
