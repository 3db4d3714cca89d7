"""The bits of exact sums: one digest of ``fsum`` for all ranks, cuts and devices.

    mpirun -n 8 python launch/tools/fsum_bits.py [--size 20] [--cuts 10] [--backend cpu|cuda]
                                                 [--seed 0]

Scans the same 2^SIZE elements on 1, 2, ... and all ranks, CUTS times each: cut at random, with
empty shards among them, forward and mirrored, by each strategy. Prints a line for each kind of
data, device and number of ranks: the digests (SHA-256, cut off) of all its results. The exit status
is 1 if there is more than one digest for the same data.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import distscan
from distscan.mpi.agree import agreed

KINDS = ("grid", "normal", "any")  # one word, two words, all bit patterns


def elements(rng: np.random.Generator, kind: str, name: str, n: int) -> Any:
    """Draw n elements."""
    if kind == "grid":
        return (rng.integers(-(2**20), 2**20, n) / 2.0**10).astype(name)
    if kind == "normal":
        return rng.standard_normal(n).astype(name)
    x = rng.integers(0, 256, n * np.dtype(name).itemsize, np.uint8).view(name)
    return np.where(np.isfinite(x), x, x.dtype.type(1))


def cut(rng: np.random.Generator, n: int, ranks: int) -> list[int]:
    """Draw where shards begin and end; in half of the cuts, many of them are empty."""
    places = rng.integers(0, n + 1, ranks - 1)
    if ranks > 1 and rng.random() < 0.5:
        places = rng.choice([0, n, places[0]], ranks - 1)
    return [0, *np.sort(places).tolist(), n]


def digests(xp: ModuleType, x: Any, comm: MPI.Intracomm, seed: int, cuts: int) -> set[str]:
    """Scan as often as there are cuts; return the digests of the results, on rank 0."""
    rng, texts = np.random.default_rng([seed, comm.size]), set()
    for number in range(cuts):
        ends, reverse = cut(rng, len(x), comm.size), number % 2 == 1
        part = slice(*ends[comm.rank : comm.rank + 2])
        shard = xp.asarray((x[::-1] if reverse else x)[part])
        strategy = "single-pass" if comm.size == 1 and number % 4 < 2 else "reduce-scan"
        y = distscan.scan(shard, "fsum", comm=comm, reverse=reverse, strategy=strategy)
        parts = comm.gather(y if xp is np else y.get())
        if parts is not None:
            result = np.concatenate(parts)
            result = np.ascontiguousarray(result[::-1]) if reverse else result
            texts.add(hashlib.sha256(result).hexdigest()[:16])
    return texts


def devices(backend: str) -> dict[str, ModuleType]:
    """Return the array libraries, by the name of their device."""
    libraries: dict[str, ModuleType] = {} if backend == "cuda" else {"cpu": np}
    if backend != "cpu":
        try:
            import cupy  # noqa: PLC0415 - there may be no GPU

            count = cupy.cuda.runtime.getDeviceCount()
            cupy.cuda.Device(MPI.COMM_WORLD.rank % count).use()
            libraries["cuda"] = cupy
        except Exception:
            if backend == "cuda":
                raise
    return libraries


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table on rank 0; return the exit status."""
    parser = argparse.ArgumentParser(prog="fsum_bits.py", description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=20, help="2^SIZE elements")
    parser.add_argument("--cuts", type=int, default=10, help="for each number of ranks")
    parser.add_argument("--backend", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options, world = parser.parse_args(arguments), MPI.COMM_WORLD
    where, several = devices(options.backend), False
    if world.rank == 0:
        print(f"{'data':8}{'type':9}{'device':8}{'ranks':>5}{'scans':>7}  digests")
    for kind in KINDS:
        for name in ("float32", "float64"):
            rng = np.random.default_rng([options.seed, KINDS.index(kind)])
            x, all_digests = elements(rng, kind, name, 1 << options.size), set()
            for device, xp in where.items():
                for ranks in range(1, world.size + 1):
                    comm = world.Split(0 if world.rank < ranks else MPI.UNDEFINED)
                    texts: set[str] = set()
                    with agreed(world):
                        if comm != MPI.COMM_NULL:
                            texts = digests(xp, x, comm, options.seed, options.cuts)
                            comm.Free()
                    all_digests |= texts
                    if world.rank == 0:
                        line = f"{kind:8}{name:9}{device:8}{ranks:5}{options.cuts:7}"
                        print(line, "", *sorted(texts), flush=True)
            several |= len(all_digests) > 1
    several = world.bcast(several)
    if world.rank == 0:
        print("the digests differ" if several else "one digest for the same data, each time")
    return int(several)


if __name__ == "__main__":
    sys.exit(main())
