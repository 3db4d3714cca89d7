"""How long file jobs of each format take, beside the formats' own libraries.

    python launch/tools/format_speed.py FOLDER [--gib 2] [--ranks 2] [--kinds npy hdf5 ...]
    python launch/tools/format_speed.py FOLDER --along-time [--gib 1] [--ranks 2]

Elements are random float64. The first form prints, for each
format, the seconds of

- a copy of the file by ``cp -r``
- the library: the same ranks read and write the same parts by the format's own library
- the job, its ratio to the library, and, with --memory for a small part of a shard, that job's

The second form adds up a Zarr store along time, in chunks of 8 to 64 MiB, stored as they are and
by zstd, beside a copy by zarr, dask's two ways to scan, and xarray in memory, on as many cores.

Start-up is apart: ranks import all packages and scan a small file before. Each figure is the
smallest of --repeat runs. The result is compared once.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 3000  # seconds of a program
MIB = 1 << 20
COLUMNS = 4096  # elements of a row


# ---- the files -------------------------------------------------------------------------------


def write(folder: Path, kind: str, rows: int, chunks: tuple[int, ...] | None) -> None:
    """Write the input of a kind: [rows, columns], in pieces."""
    rng, shape = np.random.default_rng(3), (rows, COLUMNS)
    path = folder / f"x{SUFFIX[kind]}"
    pieces = [(low, min(low + 256, rows)) for low in range(0, rows, 256)]
    if kind == "npy":
        target: Any = np.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=shape)
    elif kind.startswith("hdf5"):
        import h5py  # noqa: PLC0415

        target = h5py.File(path, "w").create_dataset("x", shape, "f8", chunks=chunks)
    else:
        import zarr  # noqa: PLC0415

        compressors = zarr.codecs.ZstdCodec(level=1) if kind == "zarr zstd" else None
        target = zarr.create_array(
            str(path), shape=shape, dtype="f8", chunks=chunks, compressors=compressors
        )
    for low, high in pieces:
        x = rng.normal(size=(high - low, COLUMNS))
        target[low:high] = x.round(2) if kind == "zarr zstd" else x  # else zstd finds nothing
    if kind.startswith("hdf5"):
        target.file.close()


SUFFIX = {
    "npy": ".npy",
    "hdf5": ".h5",
    "hdf5 chunks": ".h5",
    "zarr": ".zarr",
    "zarr zstd": ".zarr",
}


def opened(path: Path, mode: str) -> Any:
    """Open the array of a file by its library."""
    if path.suffix == ".npy":
        return np.load(path, mmap_mode=mode)
    if path.suffix == ".h5":
        import h5py  # noqa: PLC0415

        return h5py.File(path, mode)["x"]
    import zarr  # noqa: PLC0415

    return zarr.open_array(str(path), mode=mode)


# ---- what ranks do ---------------------------------------------------------------------------


def by_library(comm: Any, path: Path, folder: Path) -> float:
    """Read and write each rank's rows by the library, in its chunks; return the seconds.

    Ranks write one file of .npy and of Zarr side by side, and one of HDF5 in turns: its library has
    one writer at a time.
    """
    source = opened(path, "r")
    tile = getattr(source, "chunks", None) or (512, COLUMNS)
    tiles = -(-source.shape[0] // tile[0])
    low, high = (tiles * (comm.rank + i) // comm.size * tile[0] for i in (0, 1))
    high, target = min(high, source.shape[0]), folder / f"library{path.suffix}"
    if comm.rank == 0:
        create(target, source)
    pieces = [
        (slice(top, min(top + tile[0], high)), slice(left, left + tile[1]))
        for top in range(low, high, tile[0])
        for left in range(0, COLUMNS, tile[1])
    ]
    comm.Barrier()
    begun = time.perf_counter()
    if path.suffix == ".h5":
        parts = [source[piece] for piece in pieces]
        for rank in range(comm.size):
            if rank == comm.rank:
                out = opened(target, "r+")
                for piece, part in zip(pieces, parts, strict=True):
                    out[piece] = part
                out.file.close()
            comm.Barrier()
        source.file.close()
    else:
        out = opened(target, "r+")
        for piece in pieces:
            out[piece] = source[piece]
    comm.Barrier()
    return time.perf_counter() - begun


def create(path: Path, source: Any) -> None:
    """Make a file as that of ``source`` is, without elements."""
    if path.suffix == ".npy":
        np.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=source.shape)
    elif path.suffix == ".h5":
        import h5py  # noqa: PLC0415

        with h5py.File(path, "w") as file:
            file.create_dataset("x", source.shape, "f8", chunks=source.chunks)
    else:
        import zarr  # noqa: PLC0415

        like = {"chunks": source.chunks, "compressors": source.compressors or None}
        zarr.create_array(str(path), shape=source.shape, dtype="f8", **like)


def ranks(arguments: argparse.Namespace) -> None:
    """Time the library and jobs on all ranks; rank 0 prints the seconds as JSON."""
    from mpi4py import MPI  # noqa: PLC0415

    import distscan  # noqa: PLC0415

    comm, folder, path = MPI.COMM_WORLD, arguments.folder, arguments.input
    member = "::x" if path.suffix == ".h5" else ""
    out = folder / f"y{path.suffix}"
    seconds: dict[str, list[float]] = {}

    def best(name: str, run: Callable[[], float | None]) -> None:
        for _ in range(arguments.repeat):
            comm.Barrier()
            begun = time.perf_counter()
            own = run()
            comm.Barrier()
            seconds.setdefault(name, []).append(own or time.perf_counter() - begun)
            if comm.rank == 0:
                for each in [*folder.glob("y.*"), *folder.glob("library*")]:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()

    def job(**options: Any) -> None:
        distscan.scan_file(f"{path}{member}", out, axis=0, backend="cpu", comm=comm, force=True,
                           **options)  # fmt: skip

    job()
    if comm.rank == 0:
        source, result = opened(path, "r"), opened(out, "r")
        for columns in (slice(0, 2), slice(COLUMNS - 2, COLUMNS)):
            np.testing.assert_allclose(result[:, columns], source[:, columns].cumsum(0), 1e-9, 1e-9)
    comm.Barrier()
    if not arguments.jobs_only:
        best("library", lambda: by_library(comm, path, folder))
    best("job", job)
    if not arguments.jobs_only:
        small = max(1, source_bytes(path) // comm.size // 8)
        best("streaming", lambda: job(memory=small))
    if comm.rank == 0:
        print(json.dumps({name: min(each) for name, each in seconds.items()}))


def source_bytes(path: Path) -> int:
    """Return the bytes of the elements of a file."""
    return int(np.prod(opened(path, "r").shape)) * 8


# ---- other programs, on as many cores ----------------------------------------------------------


def others(arguments: argparse.Namespace) -> None:
    """Time zarr, dask and xarray, in one process; print the seconds as JSON."""
    import dask  # noqa: PLC0415
    import dask.array  # noqa: PLC0415
    import xarray  # noqa: PLC0415
    import zarr  # noqa: PLC0415

    path, seconds = str(arguments.input), dict[str, float]()
    out = str(arguments.folder / "other.zarr")
    dask.config.set(scheduler="threads", num_workers=arguments.ranks)
    source = zarr.open_array(path, mode="r")
    like = {"shape": source.shape, "dtype": "f8", "chunks": source.chunks,
            "compressors": source.compressors or None}  # fmt: skip

    def copy() -> None:
        zarr.create_array(out, **like)[...] = source[...]

    def by_dask(method: str) -> None:
        total = dask.array.from_zarr(path).cumsum(axis=0, method=method)
        dask.array.store(total, zarr.create_array(out, **like), lock=False)

    def by_xarray() -> None:
        x = xarray.DataArray(source[...], dims=("time", "x"))
        zarr.create_array(out, **like)[...] = x.cumsum("time").values

    for name, run in {
        "zarr copy": copy,
        "dask": lambda: by_dask("sequential"),
        "dask blelloch": lambda: by_dask("blelloch"),
        "xarray": by_xarray,
    }.items():
        times = []
        for _ in range(arguments.repeat):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
            shutil.rmtree(out)
        seconds[name] = min(times)
    print(json.dumps(seconds))


# ---- the tables --------------------------------------------------------------------------------


def measured(role: str, arguments: argparse.Namespace, path: Path, *options: str) -> Any:
    """Run this program in a role; return what it has measured."""
    command = [sys.executable, __file__, str(path.parent), "--role", role, "--input", str(path)]
    command += ["--repeat", str(arguments.repeat), "--ranks", str(arguments.ranks), *options]
    if role == "ranks":
        command = [str(ROOT / "launch" / "mpirun.sh"), str(arguments.ranks), *command]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    text = run.stdout.strip().splitlines()[-1]
    return json.loads(text[text.index("{") :])


def copied(path: Path) -> float:
    """Return the seconds of ``cp -r``."""
    out = path.with_name("copy")
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", path, out], check=True, timeout=LIMIT)
    seconds = time.perf_counter() - begun
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    return seconds


def by_format(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the first table."""
    rows = int(arguments.gib * 1024 * MIB) // (8 * COLUMNS)
    print(f"{'':12}{'cp':>8}{'library':>9}{'job':>8}{'ratio':>7}{'streams':>9}{'ratio':>7}")
    for kind in arguments.kinds or SUFFIX:
        write(folder, kind, rows, None if kind in {"npy", "hdf5"} else (512, COLUMNS))
        path = folder / f"x{SUFFIX[kind]}"
        cp, s = copied(path), measured("ranks", arguments, path)
        print(f"{kind:12}{cp:8.2f}{s['library']:9.2f}{s['job']:8.2f}"
              f"{s['job'] / s['library']:7.2f}{s['streaming']:9.2f}"
              f"{s['streaming'] / s['library']:7.2f}", flush=True)  # fmt: skip
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def along_time(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the second table."""
    rows = int(arguments.gib * 1024 * MIB) // (8 * COLUMNS)
    names = ["zarr copy", "dask", "dask blelloch", "xarray"]
    print(f"{'MiB':>5}{'':11}{'job':>8}" + "".join(f"{name:>15}" for name in names))
    for kind in ("zarr", "zarr zstd"):
        for mib in (8, 16, 64):
            write(folder, kind, rows, (mib * MIB // (8 * 1024), 1024))
            path = folder / "x.zarr"
            s = measured("others", arguments, path)
            job = measured("ranks", arguments, path, "--jobs-only")["job"]
            factors = "".join(f"{s[name]:8.2f}{s[name] / job:6.2f}x" for name in names)
            print(f"{mib:5} {kind:10}{job:8.2f}{factors}", flush=True)
            shutil.rmtree(path)


def main() -> None:
    """Read the arguments, and do what they say."""
    parser = argparse.ArgumentParser(prog="format_speed.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("folder", type=Path, help="where files are, such as /dev/shm")
    add("--gib", type=float, default=2.0)
    add("--ranks", type=int, default=2)
    add("--repeat", type=int, default=3)
    add("--kinds", nargs="+", choices=SUFFIX)
    add("--along-time", action="store_true", help="a Zarr store, beside dask and xarray")
    add("--role", help=argparse.SUPPRESS)
    add("--input", type=Path, help=argparse.SUPPRESS)
    add("--jobs-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is not None:
        (ranks if arguments.role == "ranks" else others)(arguments)
        return
    os.environ["PYTHONWARNINGS"] = "ignore"
    with tempfile.TemporaryDirectory(prefix="format_speed-", dir=arguments.folder) as folder:
        (along_time if arguments.along_time else by_format)(arguments, Path(folder))


if __name__ == "__main__":
    main()
