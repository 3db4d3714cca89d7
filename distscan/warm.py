"""``python -m distscan warm``: kernels are compiled before a scan needs them. No MPI.

With ``--arch`` no GPU is needed.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from . import binding, cli
from .cli import Parser, parse
from .core import dtypes, operators
from .core.errors import BackendError
from .mpi import launcher

if TYPE_CHECKING:
    from .cuda.catalogue import KernelRequest
    from .cuda.kernel import Built

_TYPES = "float32,float64,int32,int64"


def main(argv: Sequence[str]) -> int:
    """Compile the kernels; return the exit status, as that of a file job."""
    first = launcher.launched_rank() == 0
    try:
        args = parse(parser(), argv)
        if args is not None:
            args.quiet |= not first
            _compile(args)
        return 0
    except Exception as error:
        return cli.fail("distscan", error) if first else cli.status(error)
    except KeyboardInterrupt:
        cli.fail("distscan", RuntimeError("interrupted; the kernels so far are in the folder"))
        return 130


def parser() -> Parser:
    """Return the parser of the arguments."""
    parser = Parser(
        "warm",
        description="Compile the kernels of 1-D scans, inclusive and exclusive, with and without "
        "flags of segments, into the folder of compiled kernels.",
        epilog="example: python -m distscan warm --ops sum,max --types float32 --arch 90",
    )
    add = parser.add_argument
    add("--ops", metavar="OP,...", default="sum", help="operators (default: sum)")
    add("--types", metavar="T,...", default=_TYPES, help=f"types of elements (default: {_TYPES})")
    add("--arch", metavar="CC,...", help="compute capabilities, as 80,90 (default: the GPU's)")
    add(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="write an archive for each compute capability to FOLDER, for a wheel",
    )
    add("--quiet", action="store_true", help="print nothing")
    return parser


def _compile(args: argparse.Namespace) -> None:
    """Compile all kernels that the arguments name, on all cores; print a line for each."""
    binding.cuda()
    from .cuda import kernel  # noqa: PLC0415 - CuPy is imported where it is needed

    requests = dict(_requests(args))
    folder = kernel.cache_folder() if args.output is None else args.output
    if folder is None:
        raise BackendError("there is no folder for compiled kernels; set DISTSCAN_CACHE_DIR")
    if args.output is not None:
        folder.mkdir(parents=True, exist_ok=True)

    def build(request: "KernelRequest") -> "tuple[KernelRequest, Built, float]":
        begin = perf_counter()
        return request, request.build(), perf_counter() - begin

    archives: dict[str, dict[str, Built]] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            futures = [pool.submit(build, request) for request in requests]
            for i, future in enumerate(as_completed(futures), 1):
                request, built, seconds = future.result()
                if args.output is not None:
                    if not built[0].startswith(b"\x7fELF"):
                        raise BackendError(f"this NVRTC is too old for sm_{request.arch}")
                    archives.setdefault(request.arch, {})[request.name] = built
                if not args.quiet:
                    line = f"{i}/{len(futures)}  {requests[request]}  {seconds:.2f} s"
                    print(f"distscan: {line}", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    for arch, entries in archives.items():
        kernel.write_archive(folder / f"sm_{arch}.zip", entries)
    if not args.quiet:
        print(f"{len(requests)} kernels are in {folder}", flush=True)


def _requests(args: argparse.Namespace) -> "Iterator[tuple[KernelRequest, str]]":
    """Yield the kernels, each with its name."""
    from .cuda import catalogue  # noqa: PLC0415

    scans = [
        (op, dtypes.resolve(op, dtypes.parse(name)))
        for op in map(operators.resolve, args.ops.split(","))
        for name in args.types.split(",")
    ]
    archs = args.arch.split(",") if args.arch else [catalogue.current_arch()]
    for arch, (op, types) in product(archs, scans):
        if not re.fullmatch(r"\d{2,3}", arch) or int(arch) < 80:
            raise ValueError(f"a compute capability is such as 90, and not below 80: {arch!r}")
        for request in catalogue.scan_kernels(op, types, arch):
            yield request, f"{request.entry:15}  {op.name} of {types.x}  sm_{arch}"
