"""The kernels that work along a shard: their arguments, and their messages to and from the host.

``prepare``, ``set_offset`` and ``defer_offset`` set arguments. ``kernel.launch`` queues the kernel
with them.
"""

import functools
from time import perf_counter
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.arrays import FieldArrays
from ..core.dtypes import Types
from ..core.errors import KernelError
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import checks
from .arguments import fields_of, flagged, point, set_unit, view
from .definitions import definitions, register_types, settable, type_name
from .kernel import Kernel
from .policy import (
    ADD_THREADS,
    VECTOR,
    LaunchConfig,
    beside,
    evict_first,
    per_vector,
    reduce_policy,
    sm_count,
)
from .workspace import zeros

# ---- the word in which a kernel reports an element outside of the window ---------------------


class ViolationWord:
    """A word in pinned host memory: the epoch of the last launch that has seen such an element."""

    nbytes = 4

    def __init__(self, arguments: Any) -> None:
        """Allocate the word, and set it in the arguments of the kernel that checks elements."""
        self._pinned = cupy.cuda.alloc_pinned_memory(self.nbytes)
        self._word: NDArray[np.uint32] = np.frombuffer(self._pinned, np.uint32, 1)
        self._word[0] = 0
        self._unit = arguments.unit  # sets the arguments
        self._unit.outside = self._pinned.ptr

    def begin(self, epoch: int) -> None:
        """Set the epoch of the next launch."""
        self._unit.epoch = epoch

    def since(self, epoch: int) -> bool:
        """Return whether the launch of ``epoch``, or a later one, has seen such an element.

        The launch has ended. The epochs of a workspace rise, so later launches hide no report.
        """
        return bool(self._word[0] >= epoch)


def checks_window(types: Types, form: Form) -> bool:
    """Return whether a check of elements inside kernels costs less than a pass over them.

    For float16 it costs more: see ``policy.py``. So it does for rows and segments, where scanners
    would check the elements, too: rows of 1024 float32, 2^28 elements, took 1516 us with the pass,
    and 2710 us with checks inside (H100).
    """
    one_scan = form.extents.outer == form.extents.inner == 1 and not form.segmented
    return one_scan and types.x.itemsize >= 4


def violation_word(op: Operator, kernel: Any) -> ViolationWord | None:
    """Return the word of a kernel; None if the kernel does not check elements."""
    return ViolationWord(kernel.arguments) if checks(op) else None


# ---- the kernels' arguments and messages -----------------------------------------------------

# Bytes that the reduction leaves in L2 for the scan. Microseconds of both on sm_90, for 1 GiB of
# float32 (float64): none 779 (780), 24 MiB 778 (777), 32 MiB 780 (776), 40 MiB 777 (774).
_CACHED = 40 << 20
_LANES = 32
_NOT_READY = 600  # cudaErrorNotReady
_POLLS = 1 << 14  # polls of a word between two checks that the stream is still busy
_LIMIT = 1e-3  # the least seconds that a kernel waits for its offset; see linear/offset.cuh
_NOTHING, _SOMETHING, _CALLED_OFF = range(3)  # State of kernels/linear/offset.cuh


def count_unaligned(array: Any, n: int, *, reverse: bool = False) -> int:
    """Return the number of elements before the first boundary of vectors.

    Of a tuple of arrays, the boundaries of the first array count.
    """
    if type(array) is FieldArrays:
        array = array[0]
    short = (array.data.ptr + n * array.itemsize if reverse else -array.data.ptr) % VECTOR
    return min(n, short // array.itemsize) if short % array.itemsize == 0 else 0


class Scan(Kernel):
    """A kernel that scans a shard in one pass: ``scan``, ``scan_short`` or ``textbook``."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form, config: LaunchConfig
    ) -> None:
        """Compile, and allocate a total for each tile. The running value has type ``types.acc``."""
        macros = definitions(op, types, form, **config.policy)
        size = config.threads, config.shared
        super().__init__(config.entry, macros, types.acc, *size, fields=fields_of(types))
        arguments, rows, n = self.arguments, form.extents.outer > 1, form.extents.outer * n
        self._n, self._reverse, self._acc = n, form.reverse, types.acc
        self._tile, self._most_blocks = config.tile, config.blocks
        total = flagged(types.acc) if form.segmented or rows else types.acc
        tiles = n // self._tile + 2
        stride = tiles + tiles // _LANES + 1  # groups of tiles have totals, too
        self._totals = zeros((config.words * -(-total.itemsize // 4), stride), np.uint64)
        self._draws = zeros(1, np.uint64)
        self.nbytes = int(self._totals.nbytes)
        # Structures inside the arguments: to set them sets the arguments.
        self._shard, self._work = arguments.shard, arguments.work
        self._last = self._work.total
        self._shard.n = n
        moved = n * (types.x.itemsize + types.out.itemsize + beside(form))
        self._shard.evict_first = evict_first(moved)
        set_unit(arguments, op)
        self._work.totals.words, self._work.totals.stride = self._totals.data.ptr, stride
        self._last.stride, self._work.draws = 1, self._draws.data.ptr
        # Rows have no offset, only ``first``.
        self._offset = None if rows else settable(view(arguments, "offset", types.acc))
        if form.seed is not None and (form.segmented or rows):
            settable(view(arguments, "first", types.acc))[0] = form.seed
        if rows and n > 0:
            length = n // form.extents.outer
            arguments.row.length = length
            arguments.row.reciprocal = min((1 << 64) // length, (1 << 64) - 1)
            arguments.row.starts = sum(1 << i for i in range(0, 32, length))
        #: Whether the kernel can be launched before its offset is known.
        self.can_wait = not (form.segmented or rows)
        self._mail: Any = None if rows else arguments.mail
        # Latency decides for short shards, and an unaligned head would be a tile of another block.
        self._cuts_head = config.entry != "scan_short"

    def prepare(self, x: Any, y: Any, heads: Any = None, total: int = 0) -> None:
        """Set all arguments but the offset and the epoch.

        ``total`` is the address for the shard's last value; 0 for none.
        """
        head = count_unaligned(y, self._n, reverse=self._reverse) if self._cuts_head else 0
        tiles = (head > 0) + -(-(self._n - head) // self._tile)
        self.blocks = min(tiles, self._most_blocks)
        arguments, shard = self.arguments, self._shard
        if type(x) is FieldArrays:
            point(arguments, "x", x)
            point(arguments, "y", y)
        else:
            arguments.x, arguments.y = x.data.ptr, y.data.ptr
        if heads is not None:
            arguments.heads = heads.data.ptr
        shard.unaligned_head, shard.tiles = head, tiles
        self._last.words = total

    def set_offset(self, offset: NDArray[Any] | None, epoch: int) -> None:
        """Set the offset, and the epoch of the last value."""
        if self._offset is not None:
            self.arguments.has_offset = offset is not None
            if offset is not None:
                self._offset[0] = offset
        if self._mail is not None:
            self._mail.from_host = 0
        self._work.epoch = epoch

    def defer_offset(self, epoch: int, stream: Any) -> None:
        """Set the arguments so that the kernel waits for its offset, which ``mail`` sends."""
        self._mail.from_host, self._mail.answer = self.mail.note_launch(stream)
        self._work.epoch = epoch

    def take_offset(self, words: int, answer: int, epoch: int) -> None:
        """Set the addresses on the GPU of the offset's status words, and of one for the answer.

        The words are there when the kernel begins.
        """
        mail = self._mail
        mail.from_host, mail.passed_on, mail.answer = words, words, answer
        self._work.epoch = epoch

    @functools.cached_property
    def mail(self) -> "HostOffset":
        """The memory through which a running kernel gets its offset."""
        mail = HostOffset(self._acc)
        self._mail.passed_on = mail.passed_on
        return mail


def source_of(form: Form) -> str:
    """Return the name of what a reduction reads: see kernels/source.cuh."""
    if form.keys is not None:
        return f"KeyedBy<{type_name(form.keys)}>::Pointer"
    return "FlaggedPointer" if form.segmented else "ItemPointer"


class Reduce(Kernel):
    """The kernel of ``kernels/linear/reduce.cuh``."""

    _entry = "reduce"

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate a total for each block."""
        types = register_types(op, types)
        policy = reduce_policy(op, types, form, cupy.cuda.Device().compute_capability)
        # The kernel needs no more of the form.
        form = Form(reverse=form.reverse, segmented=form.segmented, keys=form.keys)
        macros = definitions(op, types, form, source=source_of(form), **policy._asdict())
        super().__init__(self._entry, macros, types.acc, policy.threads, fields=fields_of(types))
        self._n, self._reverse = n, form.reverse
        self._step = _LANES * policy.rows * policy.items
        self._most_blocks = policy.blocks * sm_count()
        total = flagged(types.acc) if form.segmented else types.acc
        self._totals = cupy.empty(2 * self._most_blocks * total.itemsize, np.uint8)
        self._arrived = cupy.zeros(1, np.uint32)
        self.nbytes = int(self._totals.nbytes)
        arguments = self.arguments
        arguments.n, arguments.cached = n, _CACHED // (types.x.itemsize + beside(form))
        arguments.totals, arguments.arrived = self._totals.data.ptr, self._arrived.data.ptr
        self._bind(op)

    def _bind(self, op: Operator) -> None:
        """Set the arguments that are the same in each launch, and note those that are not."""
        set_unit(self.arguments, op)
        self._total = self.arguments.total
        self._total.stride = 1

    def prepare(self, x: Any, total: int, epoch: int, heads: Any = None) -> None:
        """Set all arguments. The shard's total goes to the address ``total``, with ``epoch``."""
        self._prepare(x)
        self._total.words, self.arguments.epoch = total, epoch
        if heads is not None:
            self.arguments.heads = heads.data.ptr

    def _prepare(self, x: Any) -> None:
        """Set the arguments of the shard."""
        head = count_unaligned(x, self._n, reverse=self._reverse)
        self.blocks = max(1, min(-(-(self._n - head) // self._step), self._most_blocks))
        arguments = self.arguments
        if type(x) is FieldArrays:
            point(arguments, "x", x)
        else:
            arguments.x = x.data.ptr
        arguments.unaligned_head = head


class Add(Kernel):
    """The kernel of ``kernels/linear/add.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile the kernel."""
        # The kernel needs the direction only for exclusive scans, to find their first element.
        form = Form(exclusive=form.exclusive, reverse=form.exclusive and form.reverse)
        macros = definitions(op, types, form, threads=ADD_THREADS)
        super().__init__("add", macros, types.acc, ADD_THREADS)
        self._n, self._each = n, ADD_THREADS * per_vector(types.acc, types.out)
        self.arguments.n = n
        self._offset = view(self.arguments, "offset", types.acc)

    def prepare(self, y: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Set all arguments. ``offset`` is combined into ``y``; None copies ``y`` to ``out``."""
        head = count_unaligned(out, self._n)
        self.blocks = max(1, -(-(self._n - head) // self._each))
        arguments = self.arguments
        arguments.y, arguments.out, arguments.unaligned_head = y.data.ptr, out.data.ptr, head
        arguments.has_offset = offset is not None
        if offset is not None:
            self._offset[0] = offset


# ---- messages between a running kernel and the host, in pinned host memory ---------------------


def _poll(numbers: Any, place: int, epoch: int, stream: Any) -> None:
    """Wait until a kernel on ``stream`` has written ``epoch`` to ``numbers[place]``.

    Raises ``KernelError`` if the kernel ends before that.
    """
    polls = 0
    while numbers[place] != epoch:
        polls += 1
        if polls % _POLLS == 0:
            if cupy.cuda.runtime.streamQuery(stream.ptr) == _NOT_READY:
                continue
            stream.synchronize()  # raises the error of the stream, if it has one
            if numbers[place] != epoch:
                raise KernelError("a kernel ended without its word to the host")


class HostTotal:
    """The total of a shard, which a running kernel writes into pinned host memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        """Allocate the words of one element of ``dtype``."""
        self.dtype = dtype
        self._words = -(-dtype.itemsize // 4)
        self.nbytes = 8 * self._words
        self._pinned = cupy.cuda.alloc_pinned_memory(self.nbytes)
        self.pointer = self._pinned.ptr
        # [WORDS][2]: 4 bytes of the value, then the epoch of the launch that wrote them.
        self._halves: NDArray[np.uint32] = np.frombuffer(
            self._pinned, np.uint32, 2 * self._words
        ).reshape(self._words, 2)
        self._halves[...] = 0
        self._epochs = self._halves.reshape(-1).data[1::2]

    def wait(self, epoch: int, stream: Any) -> NDArray[Any]:
        """Wait for the total of the launch of ``epoch`` on ``stream``, and return it, 0-d."""
        for word in range(self._words):
            _poll(self._epochs, word, epoch, stream)
        value = self._halves[:, 0].tobytes()[: self.dtype.itemsize]
        return np.frombuffer(value, self.dtype).reshape(())


class HostOffset:
    """The offset of a running kernel, which waits for it in pinned host memory: see offset.cuh.

    A kernel answers whether the offset came in time. An offset that is sent soon after the launch
    must be in time, so the host does not wait for the answer: it reads the answer when the next
    offset is sent, or when the plan is closed. Launches use two words for answers in turn.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        """Allocate words for a state, for one element of ``dtype``, and for two answers."""
        size = -(-dtype.itemsize // 4)
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * (size + 3))
        words: NDArray[np.uint64] = np.frombuffer(self._pinned, np.uint64, size + 3)
        words[...] = 0
        self._words = words.data  # a state, the value, the answers
        self._halves = words.view(np.uint32).data
        value = np.zeros(size, np.uint32)
        self._value = settable(value.view(np.uint8)[: dtype.itemsize].view(dtype))
        self._parts = value.data
        self._passed_on = cupy.zeros(size + 1, np.uint64)
        #: The field of ``Mail`` of kernels/linear/offset.cuh.
        self.passed_on = self._passed_on.data.ptr
        self._answer = size + 1  # the word for the answer to the last launch
        self._unread: tuple[int, int] | None = None  # the word of an answer, and its epoch
        self._begin = 0.0

    def note_launch(self, stream: Any) -> tuple[int, int]:
        """Note the time of a launch. Return the addresses of the offset and of the answer."""
        first = len(self._parts) + 1
        self._answer = 2 * first + 1 - self._answer
        if self._unread is not None and self._unread[0] == self._answer:
            self.check(stream)  # the launch between the two got no offset
        self._begin, address = perf_counter(), int(self._pinned.ptr)
        return address, address + 8 * self._answer

    def send(self, epoch: int, offset: NDArray[Any] | None, stream: Any) -> bool:
        """Send ``offset`` to the launch of ``epoch``. Return whether the kernel still waited.

        The launch before has ended. Raises ``KernelError`` if it has stored nothing.
        """
        self.check(stream)
        number = epoch << 32
        if offset is not None:
            self._value[0] = offset
            for i, part in enumerate(self._parts, 1):
                self._words[i] = number | part
        else:
            for i in range(1, len(self._parts) + 1):
                self._words[i] = number
        self._words[0] = number | (_NOTHING if offset is None else _SOMETHING)
        if perf_counter() - self._begin < _LIMIT / 2:
            self._unread = self._answer, epoch
            return True
        return self._was_in_time(self._answer, epoch, stream)

    def check(self, stream: Any) -> None:
        """Raise ``KernelError`` if a kernel has stored nothing, because its offset came too late.

        Waits for the kernel, which runs on ``stream``.
        """
        if self._unread is not None:
            answer, self._unread = self._unread, None
            if not self._was_in_time(*answer, stream):
                raise KernelError(
                    "the results of the scan before this one were not stored: by the GPU's clock "
                    "its offset came too late; scan again, with strategy='scan-add' if this recurs"
                )

    def _was_in_time(self, answer: int, epoch: int, stream: Any) -> bool:
        """Wait for the answer to the launch of ``epoch``; return whether it took the offset."""
        _poll(self._halves, 2 * answer + 1, epoch, stream)
        return bool(self._halves[2 * answer] != _CALLED_OFF)
