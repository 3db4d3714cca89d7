"""Count modules, lines and imports; and, on a CPU, the Python calls of scans and a file job."""

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "distscan"
# A test may import these. All modules below them are internals.
PUBLIC = {"distscan", "distscan.bench", "distscan.service", "distscan.service.errors"}


def python_files(folder: str) -> list[Path]:
    """Return the Python files of a folder that Git knows."""
    command = ["git", "ls-files", f"{folder}/*.py"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in map(ROOT.joinpath, listing.stdout.split()) if path.exists()]


def module_name(path: Path) -> str:
    """Return the name by which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the names that a file imports: modules, and perhaps names in modules."""
    package = module_name(path).split(".")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            levels = node.level - (path.stem == "__init__")
            above = package[: len(package) - levels] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def files_and_lines() -> Iterator[tuple[str, float]]:
    """Yield the counts that need no run."""
    paths = python_files("distscan")
    modules = {module_name(path): path for path in paths}
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    plain = [path for path in paths if path.stem != "__init__"]
    importers = Counter(
        name for path in paths for name in {*imports(path)} if modules.get(name, path) != path
    )
    yield "modules", len(paths)
    yield "modules at the root", sum(path.parent == PACKAGE for path in paths)
    yield "lines of the library", sum(lines.values())
    yield "lines per module, median", median(lines.values())
    yield "modules with one importer", sum(importers[module_name(path)] == 1 for path in plain)
    yield "modules below 60 lines", sum(lines[path] < 60 for path in plain)
    tests = python_files("tests")
    internals = modules.keys() - PUBLIC
    yield "lines of tests", sum(len(path.read_text().splitlines()) for path in tests)
    test_files = [path for path in tests if path.name.startswith("test_")]
    internal = [path for path in test_files if not internals.isdisjoint(imports(path))]
    yield "test files that import internals", len(internal)


def entered(call: Callable[[], object]) -> list[str]:
    """Return the file of each Python function of the library that a call enters, once per entry."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            files.append(code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def calls() -> None:
    """Print the counts of calls on these ranks, as JSON."""
    sys.path.insert(0, str(ROOT))
    import numpy as np  # noqa: PLC0415 - the other counts need no NumPy
    from mpi4py import MPI  # noqa: PLC0415

    import distscan  # noqa: PLC0415

    x = np.arange(1000.0)
    plan, out = distscan.Plan(None, x.shape, x.dtype, backend="cpu"), np.empty_like(x)
    counts: dict[str, float] = {}
    scans: dict[str, Callable[[], object]] = {
        "scan(x)": lambda: distscan.scan(x),
        "a Plan's call": lambda: plan(x, out),
        "fsum": lambda: distscan.scan(x, "fsum"),
    }
    for name, scan in scans.items():
        runs = [entered(scan) for _ in range(8)][3:]  # the first calls decide and compile
        counts[f"calls of {name}"] = median(map(len, runs))
        counts[f"files of {name}"] = median(len({*files}) for files in runs)
    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as folder:
        source, result = comm.bcast((f"{folder}/x.npy", f"{folder}/y.npy"))
        if comm.rank == 0:
            np.save(source, x)
        comm.Barrier()
        for _ in range(2):
            job = entered(lambda: distscan.scan_file(source, result, backend="cpu", force=True))
        counts["files of a file job"] = len({*job})
        comm.Barrier()
    if comm.rank == 0:
        print(json.dumps(counts))


def main() -> None:
    """Print the table."""
    for title, count in files_and_lines():
        print(f"{title:<40}{count:>8g}")
    for ranks in ("1", "2"):
        command = [ROOT / "launch" / "mpirun.sh", ranks, sys.executable, __file__, "--calls"]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for title, count in json.loads(run.stdout[run.stdout.index("{") :]).items():
            print(f"{f'{title}, ranks: {ranks}':<40}{count:>8g}")


if __name__ == "__main__":
    calls() if sys.argv[1:] == ["--calls"] else main()
