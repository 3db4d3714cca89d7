"""What every test file shares. The suite runs, whole, at any number of ranks.

Every rank draws the same global array from one seed, takes its own shard of it, and compares its
part of the result with NumPy's scan of the whole. ``DISTSCAN_SEED=...`` repeats a run.
``DISTSCAN_WHOLE=1`` runs all cases where a run takes a part of them.
"""

import functools
import importlib.util
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

# What they assert is shown as in tests.
pytest.register_assert_rewrite("support")

import distscan  # noqa: E402
from support.cases import CUTS, SEED, STRATEGIES, Cut  # noqa: E402

#: The part of the tests that a run takes: "1/3" is the first third.
PART = os.environ.get("DISTSCAN_PART", "1/1")
#: The number of this process among those that run tests side by side.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKER += int(PART.partition("/")[0]) - 1
HAS_TIME_LIMITS = importlib.util.find_spec("pytest_timeout") is not None
PACKAGE = str(Path(distscan.__file__).parent)
TESTS = str(Path(__file__).parent)


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Operators, types and kernels go by their names; pytest names other values."""
    return name if isinstance(name := getattr(val, "name", None), str) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files with fast tests for ``-m fast``."""
    others = config.option.markexpr == "fast" and collection_path.is_file()
    return True if others and "mark.fast" not in collection_path.read_text() else None


def pytest_report_header() -> str:
    gpu = f"tests of a GPU are left out, {reason}" if (reason := _no_gpu()) else "a GPU"
    limits = "" if HAS_TIME_LIMITS else ", no time limits: there is no pytest-timeout"
    return f"distscan: {MPI.COMM_WORLD.size} ranks, DISTSCAN_SEED={SEED}, {gpu}{limits}"


def pytest_addoption(parser: pytest.Parser) -> None:
    if not HAS_TIME_LIMITS:
        for name in ("timeout", "timeout_method"):
            parser.addini(name, "of pytest-timeout, which is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """Skip a file whose imports need a package that is not installed. In CI that is a failure."""
    report = yield
    error = report.call.excinfo.value.__cause__ if report.failed else None
    if isinstance(error, ModuleNotFoundError) and "CI" not in os.environ:
        package = (error.name or "").partition(".")[0]
        if package and importlib.util.find_spec(package) is None:
            report.outcome = "skipped"
            report.longrepr = str(collector.path), 1, f"Skipped: {package} is not installed"
    return report


# Among several ranks, rank 0 speaks for what passes, and each rank for what fails on it.


@pytest.hookimpl(trylast=True)  # once the terminal reporter is there
def pytest_configure(config: pytest.Config) -> None:
    if not HAS_TIME_LIMITS:
        config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")
    if MPI.COMM_WORLD.size > 1:
        # The reporter stays, since pytest-timeout writes the stacks through it.
        config.pluginmanager.get_plugin("terminalreporter")._show_progress_info = False
        if MPI.COMM_WORLD.rank > 0:
            if hasattr(config, "cache"):
                config.cache.set = lambda *_: None  # rank 0 writes what --lf reads
            config.option.verbose = -2  # no header, no file names, no counts
            config.option.reportchars = "fE"


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(report: pytest.TestReport) -> Iterator[Any]:
    category, letter, word = yield
    # Counted without a dot: mpirun would put a label in front of every one.
    shown = MPI.COMM_WORLD.size == 1 or report.failed
    return (category, letter, word) if shown else (category, "", "")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[Any]:
    result = yield
    if MPI.COMM_WORLD.rank > 0 and not session.testsfailed:
        session.config.pluginmanager.unregister(name="terminalreporter")  # it ends with a newline
    return result


def _no_gpu() -> str:
    """Say why GPU tests cannot run here; empty where they can."""
    try:
        import cupy
    except ImportError as error:
        return f"no CuPy: {error}"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {error}"
    return ""


@pytest.hookimpl(trylast=True)  # once -k and -m have picked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not for this run: to skip thousands of tests takes its time too."""
    kept = items
    if MPI.COMM_WORLD.size > 1:
        kept = [item for item in kept if not item.get_closest_marker("one_rank")]
    if any(item.get_closest_marker("gpu") for item in kept) and _no_gpu():
        kept = [item for item in kept if not item.get_closest_marker("gpu")]
    part, parts = map(int, PART.split("/"))  # a test's name alone decides its part
    kept = [item for item in kept if zlib.crc32(item.nodeid.encode()) % parts == part - 1]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


# ---- exceptions that a traceback shows above the one that was raised -----------------------------


def internal_exception(fault: BaseException) -> BaseException | None:
    """Return the first exception that a refusal of distscan shows without wanting to; else None.

    What it names as its cause, it wants to show. Faults of the system and of a caller's functions
    help the reader.
    """
    if not any(file.startswith(PACKAGE) for file in _files(fault)):
        return None
    while fault is not None:
        context = None if fault.__suppress_context__ else fault.__context__
        if context is not None and not isinstance(context, OSError):
            *_, innermost = _files(context)
            if not innermost.startswith(TESTS):
                return context
        fault = fault.__cause__ or context
    return None


def _files(fault: BaseException) -> list[str]:
    """Return the files of a traceback, the innermost last."""
    files, trace = [], fault.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files


@pytest.fixture(autouse=True, scope="session")
def _no_internals() -> Iterator[None]:
    """See that no refusal of distscan shows an exception of its inner workings above its own."""
    manager: Any = type(pytest.raises(ZeroDivisionError))
    plain = manager.__exit__

    def leave(self: Any, kind: Any, fault: BaseException | None, trace: Any) -> bool:
        expected = plain(self, kind, fault, trace)
        if expected and fault is not None:
            shown = internal_exception(fault)
            assert shown is None, f"{fault!r} shows {shown!r}"
        return bool(expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "__exit__", leave)
        yield


@pytest.fixture(scope="session")
def comm() -> MPI.Intracomm:
    return MPI.COMM_WORLD


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """The same stream on every rank, another one for every test."""
    return np.random.default_rng([SEED, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest, comm: MPI.Intracomm) -> ModuleType:
    """NumPy, and on a GPU CuPy: the same tests drive both backends."""
    return np if request.param == "numpy" else _cupy(comm)


@pytest.fixture
def planned(xp: ModuleType, comm: MPI.Intracomm) -> Callable[..., Any]:
    """Make a plan for arrays of the library under test."""
    from distscan import Plan

    return functools.partial(Plan, comm, backend="cpu" if xp is np else "cuda")


@pytest.fixture
def cp(comm: MPI.Intracomm) -> ModuleType:
    """CuPy, with a GPU of this rank's own where there are as many."""
    return _cupy(comm)


def _cupy(comm: MPI.Intracomm) -> ModuleType:
    """Import it; ranks, and workers of pytest-xdist at one rank, take the GPUs in turn."""
    import cupy

    cupy.cuda.Device((comm.rank + WORKER) % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """This rank's own: pytest's cleans up the folders of earlier runs, on all ranks at once."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def folder(comm: MPI.Intracomm) -> Iterator[Path]:
    """One empty folder that all ranks share."""
    with tempfile.TemporaryDirectory() if comm.rank == 0 else _nothing() as name:
        yield Path(comm.bcast(name))
        comm.Barrier()


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def run(
    comm: MPI.Intracomm,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in the shared folder; return (status, stdout, stderr) of rank 0."""
    from distscan import cli

    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(arguments)
        assert set(comm.allgather(status)) == {status}
        out, err = capsys.readouterr()
        if comm.rank > 0:
            assert not out
            assert not err
        return (status, *comm.bcast((out, err)))

    return run


@pytest.fixture
def save(comm: MPI.Intracomm, folder: Path) -> Callable[[str, np.ndarray], None]:
    """Write an input that every rank then sees."""

    def save(name: str, x: np.ndarray) -> None:
        if comm.rank == 0:
            np.save(folder / name, x, allow_pickle=True)
        comm.Barrier()

    return save


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest, comm: MPI.Intracomm, rng: np.random.Generator) -> Cut:
    """How a global array of n elements is dealt out: a function from n to this rank's slice."""

    @functools.cache  # one cut a test
    def bounds(n: int) -> slice:
        size = comm.size
        if request.param == "first":  # the first rank has everything
            ends = np.full(size + 1, n)
        elif request.param == "last":
            ends = np.zeros(size + 1, int)
        else:
            inner = np.sort(rng.integers(0, n + 1, size - 1))
            if request.param == "holes":  # every second shard is empty
                inner[1::2] = inner[0 : len(inner) // 2 * 2 : 2]
            ends = np.concatenate([[0], inner, [n]])
        ends[0], ends[-1] = 0, n
        return slice(int(ends[comm.rank]), int(ends[comm.rank + 1]))

    return bounds


@pytest.fixture(scope="session", params=[1, 3], ids=["1-rank", "3-ranks"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A service of so many ranks, for all tests that leave it running."""
    from support.services import BODY, serving

    folder = tmp_path_factory.mktemp("service")
    with serving(folder, request.param, "--body", str(BODY), "--queue", "3") as made:
        yield made


@pytest.fixture
def client(service: Any) -> Iterator[Any]:
    """A client of it."""
    with service.client() as made:
        yield made


# ---- the page of a service -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser. Without one, tests are skipped; in CI, they fail."""
    from support.pages import browsing_if_any

    with browsing_if_any() as made:
        yield made


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service with a page."""
    from support.pages import with_files

    with with_files(tmp_path_factory.mktemp("page")) as made:
        yield made


@pytest.fixture
def page(browser: Any, site: Any) -> Iterator[Any]:
    """Its page, open. When the test ends, the console has said nothing."""
    from support.pages import TOKEN, Page

    with site.client(TOKEN, 20.0) as client:
        (made := Page(browser, site, client)).open()
        made.live()
        yield made
        for job in client.jobs(10):
            job.cancel()
    assert made.messages() == []
