"""The oracle: what a scan of a whole array is, and whether a call of distscan gives it.

Written apart from the code under test: flip, cut at heads, put the seed before, accumulate.
"""

from functools import partial

import numpy as np
from mpi4py import MPI

import distscan
from support import exact
from support.arrays import host, lay_out

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
    **{
        name: getattr(np, name)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or",
                     "logical_xor")
    },
}  # fmt: skip
NAMES = [*UFUNCS]
LOGICAL = [np.logical_and, np.logical_or, np.logical_xor]
CALLS = ["scan", "out", "in place", "plan", "start"]
HALVES = "float16", "bfloat16"


# ---- the definition ------------------------------------------------------------------------------


def scan(combine, x, *, axis=None, acc=None, exclusive=False, initial=None, identity=None,
         reverse=False, heads=None):  # fmt: skip
    """Scan ``x`` with a function of two arrays; heads [x.size] flags where segments begin.

    The result has the type in which elements are combined: ``acc``, or that of ``x``. A ufunc goes
    through NumPy's ``accumulate``, any other function through a loop.
    """
    seed = initial if initial is not None else identity if exclusive else None
    acc = np.dtype(acc or x.dtype)
    if axis is None or x.ndim == 0:
        x, axis = x.reshape(-1), 0
    with np.errstate(all="ignore"):
        x = np.moveaxis(x.astype(acc), axis, 0)
        seed = None if seed is None else np.array(seed, acc).reshape(-1)[0]
        if heads is not None and reverse:  # the head of a segment is its last element
            heads = np.append(heads[1:], True)[: x.size][::-1]
        x = x[::-1] if reverse else x
        if heads is None:
            running = accumulate(combine, x, seed, exclusive)
        else:
            running = accumulate_segments(combine, x, seed, exclusive, np.asarray(heads, bool))
    return np.moveaxis(running[::-1] if reverse else running, 0, axis)


def accumulate(combine, x, seed, exclusive):
    """Scan [n, ...] from its first element to its last."""
    if len(x) == 0:
        return x.copy()
    if seed is not None:
        x = np.concatenate([np.full((1, *x.shape[1:]), seed, x.dtype), x])
    if isinstance(combine, np.ufunc) and combine.types != ["OO->O"]:
        running = combine.accumulate(x, 0, x.dtype)
    else:
        running = x.copy()
        for i in range(1, len(x)):
            running[i : i + 1] = combine(running[i - 1 : i].copy(), x[i : i + 1])
    if seed is None:
        return running
    return running[:-1] if exclusive else running[1:]


def accumulate_segments(combine, x, seed, exclusive, heads):
    """Scan [n] segment by segment; if there are many, element i of all segments at once."""
    begins = np.flatnonzero(heads)
    begins = begins if begins.size and begins[0] == 0 else np.append(0, begins)
    lengths = np.diff(begins, append=x.size)
    if begins.size < lengths.max():
        pieces = np.split(x, begins[1:])
        return np.concatenate([accumulate(combine, piece, seed, exclusive) for piece in pieces])
    running = x.copy()
    if seed is not None and x.size:
        running[begins] = combine(np.full(begins.size, seed, x.dtype), x[begins])
    for i in range(1, lengths.max()):
        places = begins[lengths > i] + i
        running[places] = combine(running[places - 1], x[places])
    if exclusive and x.size:
        running[1:] = running[:-1].copy()
        running[begins] = seed
    return running


def heads_of(segments):
    """Flag where segments begin, from flags or keys of the whole."""
    flat = np.asarray(segments).reshape(-1)
    if flat.dtype == bool:
        return flat
    return np.array([i == 0 or bool(flat[i] != flat[i - 1]) for i in range(flat.size)], bool)


def identity_of(op, acc):
    """The value that changes nothing, of a built-in operator in a type."""
    if op in ("max", "min", "logaddexp"):
        if acc.kind in "biu":
            limits = (False, True) if acc.kind == "b" else (np.iinfo(acc).min, np.iinfo(acc).max)
            return acc.type(limits[op == "min"])
        lowest = acc.type(complex(-np.inf, -np.inf) if acc.kind == "c" else -np.inf)
        return -lowest if op == "min" else lowest
    if op.endswith("_and"):
        return np.invert(np.zeros((), acc))[()]
    return acc.type(op == "prod")


def types_of(op, x, dtype=None, out=None):
    """The types in which elements are combined, and of the result: NumPy's but for its halves.

    float16 and bfloat16 accumulate in float32, float32 sums on CPUs in float64; both are rounded
    once.
    """
    combine = getattr(op, "numpy", UFUNCS[op] if op in NAMES else op)
    is_ufunc = isinstance(combine, np.ufunc) and combine.types != ["OO->O"]
    if dtype is not None:
        acc = np.dtype(dtype)
    elif out is not None and combine not in LOGICAL:
        acc = np.result_type(x, out)
    else:
        acc = combine.accumulate(np.zeros(1, x)).dtype if is_ufunc else np.dtype(x)
    acc = acc.newbyteorder("=")
    result = acc if out is None else np.dtype(out)
    if acc.name in HALVES:
        acc = np.dtype(np.float32)
    is_wide = op in ("sum", np.add) and acc == result == np.float32
    return np.dtype(np.float64) if is_wide else acc, result


def wanted(x, op="sum", *, dtype=None, out=None, segments=None, **form):
    """Scan the whole as ``distscan.scan`` has to, in the type of the result; ``out`` is a type."""
    heads = None if segments is None else heads_of(segments)
    if op == "fsum":
        result = dtype or out or (x.dtype if x.dtype.kind in "fcV" else np.float64)
        part = np.zeros(0, result).real.dtype.name
        return exact.scanned(x, part, heads=heads, **form)
    if isinstance(x, tuple):
        return wanted_of_tuple(x, op, heads=heads, **form)
    acc, result = types_of(op, x.dtype, dtype, out)
    if isinstance(op, distscan.Operator):
        combine, identity = op.numpy, op.identity
        x = x if op.load is None else op.load(x.astype(acc))
    else:
        combine, identity = UFUNCS[op] if op in NAMES else op, partial(identity_of, op)
        x = x.astype(bool) if combine in LOGICAL else x
    if form.get("exclusive") and form.get("initial") is None:
        form["identity"] = identity(acc)
    with np.errstate(all="ignore"):
        return scan(combine, x, acc=acc, heads=heads, **form).astype(result)


def wanted_of_tuple(x, op, **form):
    """Scan arrays of one shape, whose elements are combined together, as one of structures."""
    names = [f"x{i}" for i in range(len(x))]
    elements = np.empty(x[0].shape, [(name, a.dtype) for name, a in zip(names, x, strict=True)])
    for name, array in zip(names, x, strict=True):
        elements[name] = array

    def combine(a, b):
        combined = np.empty(b.shape, b.dtype)
        fields = op.numpy(*(tuple(each[name] for name in names) for each in (a, b)))
        for name, field in zip(names, fields, strict=True):
            combined[name] = field
        return combined

    if form.get("exclusive") and form.get("initial") is None:
        form["identity"] = tuple(op.identity(elements.dtype))
    result = scan(combine, elements, **form)
    return tuple(result[name] for name in names)


# ---- calls against it ----------------------------------------------------------------------------


def check(x, op="sum", *, xp=np, cut=None, call="scan", layout="contiguous", out=None, close=None,
          signs=False, segments=None, **options):  # fmt: skip
    """Scan this rank's part of the whole array ``x`` by one of the ``CALLS``; compare with NumPy's.

    The shards are those of ``cut``; without it, each rank is alone. ``out`` is the type of a result
    that the caller passes. Results are equal, or differ by a share of at most ``close``; with
    ``signs``, zeros have the same sign. What the call only reads does not change.
    """
    form = {name: options[name] for name in ("axis", "exclusive", "initial", "reverse")
            if name in options}  # fmt: skip
    want = wanted(x, op, dtype=options.get("dtype"), out=out, segments=segments, **form)
    wholes = want if isinstance(x, tuple) else (want,)
    arrays = x if isinstance(x, tuple) else (x,)
    if call == "in place" and [(a.shape, a.dtype) for a in arrays] != [
        (a.shape, a.dtype) for a in wholes
    ]:
        call = "out"
    if (call == "in place" and layout == "read-only") or call in ("plan", "start"):
        layout = "contiguous"
    rows = len(arrays[0])
    mine = slice(0, rows) if cut is None else cut(rows)
    each = arrays[0].size // max(rows, 1)
    flat = slice(mine.start * each, mine.stop * each)
    part = flat if options.get("axis") is None else mine
    wants = [whole[part] for whole in wholes]
    shards = [lay_out(xp, array[mine], layout) for array in arrays]
    marks = None if segments is None else lay_out(xp, segments.reshape(-1)[flat], layout)
    before = [host(array).tobytes() for array in (*shards, *([] if marks is None else [marks]))]
    if xp is not np and options.get("strategy") == "scan-add" and options.get("axis") is not None:
        options["strategy"] = "auto"  # on GPUs, rows of totals do not go by scan-add
    if cut is None:
        options["comm"] = MPI.COMM_SELF
    results = called(call, op, xp, shards, marks, wants, layout, out, isinstance(x, tuple), options)
    for result, expected in zip(results, wants, strict=True):
        assert isinstance(result, xp.ndarray)
        assert_same(host(result), expected, close, signs or op == "fsum", (call, op, options))
    if call != "in place":
        after = [host(array).tobytes() for array in (*shards, *([] if marks is None else [marks]))]
        assert before == after, "the input has changed"
    return results if isinstance(x, tuple) else results[0]


def called(call, op, xp, shards, marks, wants, layout, out, is_tuple, options):
    """Call distscan; return its arrays."""
    x = tuple(shards) if is_tuple else shards[0]
    if call in ("plan", "start"):
        given = {name: options[name] for name in options if name not in ("comm", "dtype")}
        plan = distscan.Plan(
            options.get("comm"), x.shape, x.dtype, op, out_dtype=out or options.get("dtype"),
            segments=None if marks is None else marks.dtype,
            backend="cpu" if xp is np else "cuda", **given,
        )  # fmt: skip
        segments = {} if marks is None else {"segments": marks}
        if call == "plan":
            return [plan(x, **segments)]
        plan.start(x, **segments)
        return [plan.wait()]
    if marks is not None:
        options = options | {"segments": marks}
    if call == "in place":
        out = x
    elif call == "out" or out is not None:
        poisoned = [lay_out(xp, poison(want), layout.replace("read-only", "contiguous"))
                    for want in wants]  # fmt: skip
        out = tuple(poisoned) if is_tuple else poisoned[0]
    y = distscan.scan(x, op, out=out, **options)
    assert out is None or y is out
    assert isinstance(y, tuple) == is_tuple
    return list(y) if is_tuple else [y]


def poison(want):
    """An array that no right result looks like."""
    return np.frombuffer(b"\xa5" * max(want.nbytes, 1), np.uint8)[: want.nbytes].copy().view(
        want.dtype).reshape(want.shape)  # fmt: skip


def assert_same(y, want, close, signs, what):
    """The same types, shapes and values; NaN is NaN."""
    assert (y.dtype.newbyteorder("="), y.shape) == (want.dtype, want.shape), what
    y = y.astype(want.dtype)
    if close is not None:
        y, want = (each.astype(np.result_type(each.dtype, np.float64)) for each in (y, want))
        np.testing.assert_allclose(y, want, close, close, err_msg=str(what))
    elif signs:
        assert exact.same(y, want), (what, y, want)
    else:
        np.testing.assert_array_equal(y, want, err_msg=str(what))
