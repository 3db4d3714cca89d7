"""Kernels that run on a CPU: g++ compiles their source, and each lane of a block is a thread.

So their logic is tested where there is no GPU: which elements they take, and in which order; their
barriers and stages. Not PTX, in whose place a function of emulation.hpp stands; nor what a GPU
alone knows: the order of its memory, its machine code, its speed.
"""

import ctypes
import mmap
import multiprocessing
import re
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from distscan.core.arrays import FieldArrays
from distscan.cuda import columns
from distscan.cuda.definitions import register_types
from distscan.cuda.kernel import sources
from support.compiling import absent_gpu

_HEADER = Path(__file__).with_suffix(".hpp")
_LIMIT = 100  # seconds of one launch
# What stands in the place of PTX: the first that has the word.
_PTX = {
    "mbarrier.init": "emulation::init(address(), arrivals);",
    "fence.": ";",
    "expect_tx": "emulation::expect(full.address(), bytes);",
    "cp.async.mbarrier.arrive": "emulation::arrive(full.address());",
    "mbarrier.arrive": "emulation::arrive(address());",
    "try_wait": "done = emulation::passed(address(), parity);",
    "barrier.sync": "__syncthreads();",
    "globaltimer": "now = emulation::nanoseconds();",
    "createpolicy": "priority = 0;",
    "cp.async.bulk.tensor": "emulation::copy_box(shared_address(to + box * bytes), boxes.maps, "
    "column * PARTS, row + box * boxes.rows, full.address());",
    "cp.async.bulk": "emulation::copy(to, from, bytes, full.address());",
    "@p cp.async.cg": "if (condition) memcpy(emulation::shared(to), (const void*)from, 16);",
    "st.relaxed": "__atomic_store_n(at, word, __ATOMIC_RELAXED);",
    "ld.relaxed": "word[i][w] = "
    "__atomic_load_n(totals.words + w * totals.stride + at(i), __ATOMIC_RELAXED);",
    "prmt": "bytes = emulation::permute(a, b, select);",
    "min.u32": "one = nonzero(from) ? 1 : 0;",
    "": 'emulation::fail("PTX without an emulation");',
}
_ASM = re.compile(r'\basm(?:\s+volatile)?\s*\((?:[^;"]|"(?:[^"\\]|\\.)*")*\)\s*;')


class Memory(np.ndarray):
    """An array in memory that a child process shares, at an address as on a GPU."""

    @classmethod
    def of(cls, count, dtype, shift=0):
        """``count`` elements, all bytes 0xA5, ``shift`` bytes after a multiple of 256."""
        dtype = np.dtype(dtype)
        memory = np.frombuffer(mmap.mmap(-1, count * dtype.itemsize + shift + 1), np.uint8)
        memory[:] = 0xA5
        return memory[shift:][: count * dtype.itemsize].view(dtype).view(cls)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def _source(text):
    text = _ASM.sub(
        lambda ptx: next(call for word, call in _PTX.items() if word in ptx.group()), text
    )
    text = text.replace("extern __shared__ __align__(128) unsigned char stages[];",
                        "unsigned char* const stages = emulation::stages;")  # fmt: skip
    return text.replace("__shared__ ", "static ").replace(").joined<", ").template joined<")


def compile_kernel(kernel, folder):
    """Compile a kernel as a library in ``folder``; return its path."""
    for name, text in sources().texts.items():
        path = folder / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_source(text))
    macros = []
    for name, value in kernel.definitions.items():
        if name.endswith(".h"):
            (folder / name).write_text(str(value))
        else:
            macros.append(f"-D{name}={value}")
    entry = f"distscan_{kernel.entry}"
    (folder / "main.cpp").write_text(
        f'#include "{_HEADER}"\n#include "kernels/{kernel.entry}.cu"\n'
        'extern "C" void launch(void** parameters, unsigned blocks, unsigned threads) {\n'
        f"  emulation::launch(distscan::{entry}, parameters, blocks, threads);\n}}\n"
    )
    command = ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", "-fpermissive"]
    command += ["-fno-strict-aliasing", "-I.", "-Ikernels", *macros, "main.cpp", "-o", "kernel.so"]
    subprocess.run(command, check=True, cwd=folder, timeout=_LIMIT)
    return folder / "kernel.so"


def _encode(to, unit, rank, address, shape, pitches, box, strides, *rest):
    """Write a tensor map as emulation.hpp reads it."""
    size = {0: 1, 1: 2, 2: 4, 4: 8}[unit]
    pitch, width = shape[0] * size, box[0] * size
    assert (rank, pitches[0]) == (2, pitch)
    assert (address.value % 16, pitch % 16, width % 16) == (0, 0, 0)
    assert max(*box) <= 256
    words = (ctypes.c_int64 * 6)(address.value, shape[0], shape[1], box[0], box[1], size)
    ctypes.memmove(to, words, ctypes.sizeof(words))
    return 0


def run(kernel, folder, blocks=1):
    """Run the blocks of a kernel, one after the other, in a child process."""
    library = compile_kernel(kernel, folder)

    def child():
        launch = ctypes.CDLL(str(library)).launch
        launch(ctypes.c_void_p(kernel.addresses), blocks, kernel.block[0])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(_LIMIT)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{kernel.entry} does not end")
    assert process.exitcode == 0


def scan_columns(op, types, x, form, folder, shift=0, beside=(), policy=None):
    """Scan arrays [outer, n, inner], ``shift`` bytes after an aligned address; return the results.

    One block scans all tiles; with ``policy``, each thread a vector of columns. ``beside`` are the
    last arrays of the result, which the scan reads.
    """
    driver = SimpleNamespace(cuTensorMapEncodeTiled=_encode)
    registers = register_types(op, types)
    with absent_gpu("90"), patch.object(columns, "_driver", lambda: driver):
        sizes = op, registers, form.extents.length, form
        if policy is None:
            kernel = columns.Scan(*sizes)
            work = kernel.arguments.work
            words = -(-registers.acc.itemsize // 4) * work.published.stride
            totals, counters = Memory.of(words, "u8"), Memory.of(1 << 12, "u4")
            totals[:] = counters[:] = 0
            work.published.words, work.tile_counter = totals.data.ptr, counters.data.ptr
            work.blocks = work.at_once = kernel.blocks = 1
        else:
            kernel = columns.ThreadPerColumn(*sizes, policy)
        inputs = [Memory.of(each.size, each.dtype, shift) for each in x]
        for memory, each in zip(inputs, x, strict=True):
            memory[:] = each.reshape(-1)
        names = types.out.names or ()
        results = [Memory.of(x[0].size, types.out[name]) for name in names]
        results = results or [Memory.of(x[0].size, types.out)]
        for memory, each in zip(results[len(results) - len(beside) :], beside, strict=True):
            memory[:] = each.reshape(-1)
        fields = types.x.names is not None
        kernel.prepare(
            FieldArrays(inputs) if fields else inputs[0],
            FieldArrays(results) if fields else results[0],
        )
        kernel.set_offset(form.seed, 5)
    run(kernel, folder, kernel.blocks)
    return [np.array(result).reshape(x[0].shape) for result in results], kernel


def reduce_columns(op, types, x, form, folder, shift=0):
    """Reduce the columns of arrays [1, n, inner] to their totals [inner], by several blocks."""
    driver = SimpleNamespace(cuTensorMapEncodeTiled=_encode)
    with absent_gpu("90"), patch.object(columns, "_driver", lambda: driver):
        kernel = columns.Reduce(op, types, form.extents.length, form)
        acc, arguments = register_types(op, types).acc, kernel.arguments
        place = partial(Memory.of, dtype=np.uint8)
        parts, arrived = place(kernel.blocks * 4096), place(4 * kernel.blocks)
        arrived[:] = 0
        arguments.parts, arguments.arrived = parts.data.ptr, arrived.data.ptr
        total = place(4096 * acc.itemsize)
        inputs = [Memory.of(each.size, each.dtype, shift) for each in x]
        for memory, each in zip(inputs, x, strict=True):
            memory[:] = each.reshape(-1)
        kernel.prepare(FieldArrays(inputs) if types.x.names else inputs[0], total.data.ptr, epoch=1)
    run(kernel, folder, kernel.blocks)
    return np.array(total).view(acc)[: form.extents.inner], kernel
