"""Associative operators, each in a NumPy, a CUDA and an MPI form."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scalars import exact_scalar

# ---- identities ------------------------------------------------------------------------------


def zero(dtype: np.dtype[Any]) -> Any:
    """Return 0; for floats -0.0."""
    # -0.0 is the exact identity of float addition: 0.0 would change -0.0 to 0.0.
    if dtype.kind == "c":
        return dtype.type(complex(-0.0, -0.0))
    return dtype.type(-0.0 if dtype.kind == "f" else 0)


def one(dtype: np.dtype[Any]) -> Any:
    """Return 1."""
    return dtype.type(1)


def ones(dtype: np.dtype[Any]) -> Any:
    """Return the value with every bit set."""
    return ~dtype.type(0)


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the lowest value of a type, the identity of max."""
    if dtype.kind == "c":
        return dtype.type(complex(-np.inf, -np.inf))
    if dtype.kind == "f":
        return dtype.type(-np.inf)
    if dtype.kind in "mM":  # the one below it is NaT
        return np.array(np.iinfo(np.int64).min + 1).view(dtype)[()]
    return dtype.type(0 if dtype.kind == "b" else np.iinfo(dtype).min)


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the highest value of a type, the identity of min."""
    if dtype.kind in "fc":
        return -lowest(dtype)
    if dtype.kind in "mM":
        return np.array(np.iinfo(np.int64).max).view(dtype)[()]
    return dtype.type(1 if dtype.kind == "b" else np.iinfo(dtype).max)


# ---- operators -------------------------------------------------------------------------------

Combine = Callable[..., Any]  # combine(earlier, later) -> array, element by element


@dataclass(frozen=True, eq=False)
class Operator:
    """An associative operator. It need not be commutative: operands are always (earlier, later).

    Attributes
    ----------
    name
        The name in errors and reports.
    numpy
        A ufunc, or any function of two arrays of one shape that combines them element by element
        and changes neither. A ufunc's ``accumulate`` decides the types. Any other function keeps
        the type of the array, and its result is cast to that type, as "same_kind" of NumPy allows.
        NumPy's arrays may be structured; CuPy has no structured arrays.
    cuda
        CUDA C++ that combines ``a`` (earlier) and ``b`` (later), both of type ``T``. It is an
        expression, or, if it contains ``return``, the body of a function. None: the operator works
        on CPUs only. So do structures, since CuPy has none: on GPUs, take ``arity``.

        Operands are always elements, the initial value, or combinations of these: so ``cuda`` may
        index a table with them. Some results are dropped. For these, ``a`` and ``b`` need not be
        neighbours: other elements or the start of a segment may lie between them, and the last
        element may be combined with itself.
    identity
        The value that leaves every other value unchanged, or a function that returns it for a
        dtype. The dtype must have this value; floats are rounded. An exclusive scan starts with it.
        None: the operator has no identity, and an exclusive scan needs ``initial``.
    mpi, mpi_kinds
        The name of MPI's own operator of the same meaning, and each ``dtype.kind`` for which it
        gives NumPy's bits. It needs an identity. For other kinds MPI calls the NumPy form.
    commutative
        Whether operands may be exchanged. The reduction of a shard is then a little faster.
    load
        A function of one array that returns another of its shape and type. It is applied to the
        elements of ``x`` when they are read, not to ``initial`` or to combinations. None: elements
        are combined as they are.
    cuda_load
        The same as CUDA C++: an expression of ``x``, an element of type ``T``.
    arity
        How many arrays an element is spread over. With 2 or more, ``x`` of ``scan`` is a tuple of
        so many arrays, and a tuple comes back. ``numpy`` is called with two tuples of arrays, and
        returns a tuple. In ``cuda``, the fields of ``a``, ``b`` and ``T`` are ``x0``, ``x1``, ...
    version
        Any text. File jobs go on with ``resume`` and ``state`` only if the operator is the same.
        They compare its texts, the code of its functions, and the values that these use. If the
        results depend on anything else, change the version when this changes.

    Raises
    ------
    TypeError
        If ``numpy`` or ``load`` is not a function, or ``cuda`` or ``cuda_load`` is not text. Faults
        inside a text are found when it is compiled: then every rank raises ``KernelError``, with
        the compiler's message and the line in the text.

    Notes
    -----
    With ``segments=``, an operator may be called with any two elements: also with elements of two
    segments, or with one element twice. Such results are dropped, but the call must not fail.

    The elements are associated in another order than in a loop, always the same order. So floats
    are rounded differently than in a loop. If a part of the data alone overflows, all results after
    it are infinite or NaN: in a product, 0.0, 1e200, 1e200 may give NaN. NumPy gives no warnings
    while an operator runs.

    Examples
    --------
    The last element so far that is not 0:

    >>> import distscan, numpy
    >>> latest = distscan.Operator("latest", numpy=lambda a, b: numpy.where(b != 0, b, a),
    ...                            cuda="b != 0 ? b : a", identity=0)
    >>> distscan.scan([7, 0, 0, 5, 0], latest)
    array([7, 7, 7, 5, 5])

    The sum of squares:

    >>> squares = distscan.Operator("squares", numpy=numpy.add, cuda="a + b", identity=0,
    ...                             load=numpy.square, cuda_load="x * x")
    >>> distscan.scan([1, 2, 3], squares)
    array([ 1,  5, 14])

    Tuples of arrays: the largest element so far, and its index.

    >>> def larger(a, b):
    ...     return tuple(numpy.where(b[0] > a[0], later, earlier) for earlier, later in zip(a, b))
    >>> argmax = distscan.Operator("argmax", numpy=larger, cuda="b.x0 > a.x0 ? b : a", arity=2)
    >>> distscan.scan((numpy.array([3., 5., 4.]), numpy.arange(3)), argmax)
    (array([3., 5., 5.]), array([0, 1, 1]))

    Structures: (m, c) is the map v -> m v + c. First (m1, c1), then (m2, c2) is the map
    (m2 m1, m2 c1 + c2):

    >>> def then(a, b):
    ...     composed = numpy.empty_like(b)
    ...     composed["m"], composed["c"] = b["m"] * a["m"], b["m"] * a["c"] + b["c"]
    ...     return composed
    >>> maps = distscan.Operator("maps", numpy=then, identity=(1, 0))
    >>> distscan.scan(numpy.array([(2, 1), (3, 0), (1, 5)], [("m", "f8"), ("c", "f8")]), maps)
    array([(2., 1.), (6., 3.), (6., 8.)], dtype=[('m', '<f8'), ('c', '<f8')])
    """

    name: str
    numpy: Combine
    cuda: str | None = None
    identity: Any = None  # after __post_init__: a function of the dtype, or None
    mpi: str = ""
    mpi_kinds: str = ""
    commutative: bool = False
    load: Callable[[NDArray[Any]], Any] | None = None
    cuda_load: str | None = None
    arity: int = 1
    version: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name= of an operator must be text, not {type(self.name).__name__}")
        if not callable(self.numpy):
            raise TypeError(f"operator {self.name!r}: numpy= must be a function of two arrays")
        if not (self.load is None or callable(self.load)):
            raise TypeError(f"operator {self.name!r}: load= must be a function of one array")
        if not isinstance(self.arity, int) or self.arity < 1:
            raise TypeError(f"operator {self.name!r}: arity= must be a number of arrays, from 1 on")
        if self.arity > 1 and (self.load is not None or self.is_ufunc):
            raise TypeError(f"operator {self.name!r}: tuples of arrays take no load= and no ufunc")
        texts = {"cuda": self.cuda, "cuda_load": self.cuda_load, "version": self.version}
        for argument, text in texts.items():
            if not isinstance(text, str | None):
                raise TypeError(f"operator {self.name!r}: {argument}= must be text, or None")
        value, name = self.identity, f"identity of operator {self.name!r}"
        if value is not None:
            find = value if callable(value) else lambda _: value
            identity = lambda dtype: exact_scalar(find(dtype), dtype, name)[()]  # noqa: E731
            object.__setattr__(self, "identity", identity)

    def combine(self, earlier: Any, later: Any, out: NDArray[Any] | None = None) -> Any:
        """Return the combination of two arrays; ``earlier`` is broadcast, and overflow is silent.

        If the operator is not a ufunc, the result has the type of ``later`` and its own memory.
        """
        with np.errstate(all="ignore"):
            if self.is_ufunc:
                return self.numpy(earlier, later, out=out)
            later = np.asarray(later)
            if out is None:
                out = np.empty(later.shape, later.dtype)
            # The function expects arrays of one shape; some functions fail on empty arrays.
            if later.size > 0:
                earlier = np.broadcast_to(earlier, later.shape)
                call = combine_arrays if self.arity == 1 else combine_fields
                out[...] = call(self.name, self.numpy, earlier, later)
            return out

    @cached_property
    def function(self) -> Combine:
        """The ufunc itself, or ``combine``; for callers that have silenced overflow."""
        return self.numpy if self.is_ufunc else self.combine

    @cached_property
    def is_ufunc(self) -> bool:
        """Whether NumPy can reduce and accumulate numbers; ufuncs of frompyfunc give objects."""
        return isinstance(self.numpy, np.ufunc) and self.numpy.types != ["OO->O"]


_NO_TYPE = np.dtype(np.void)


@dataclass(frozen=True, eq=False)
class TypedOperator(Operator):
    """An operator whose running value has one type, for elements of any type.

    Attributes
    ----------
    acc
        The type of the running value.
    cuda_type
        Its name in kernels, which convert elements to it, and it to results.
    """

    acc: np.dtype[Any] = _NO_TYPE
    cuda_type: str = ""


# ---- the built-in operators ----------------------------------------------------------------


_builtin = partial(Operator, commutative=True)

# MPI_MAX need not propagate NaN. MPI_PROD of complex numbers follows C's rules for infinities.
# MPI has no MPI_MAX of complex numbers, and no arithmetic on bool. MPI calls the NumPy form there.
BUILTIN = {
    operator.name: operator
    for operator in (
        _builtin("sum", np.add, "plus(a, b)", zero, "SUM", "iufc"),
        _builtin("prod", np.multiply, "times(a, b)", one, "PROD", "iuf"),
        _builtin("max", np.maximum, "maximum(a, b)", lowest, "MAX", "iu"),
        _builtin("min", np.minimum, "minimum(a, b)", highest, "MIN", "iu"),
        _builtin("logaddexp", np.logaddexp, "log_add_exp(a, b)", lowest),
        _builtin("bitwise_and", np.bitwise_and, "a & b", ones, "BAND", "iu"),
        _builtin("bitwise_or", np.bitwise_or, "a | b", zero, "BOR", "iu"),
        _builtin("bitwise_xor", np.bitwise_xor, "a ^ b", zero, "BXOR", "iu"),
        # These accumulate bool, so bitwise CUDA expressions are right.
        _builtin("logical_and", np.logical_and, "a & b", ones, "LAND", "b"),
        _builtin("logical_or", np.logical_or, "a | b", zero, "LOR", "b"),
        _builtin("logical_xor", np.logical_xor, "a ^ b", zero, "LXOR", "b"),
    )
}
LOGICAL = [BUILTIN[name] for name in ("logical_and", "logical_or", "logical_xor")]
#: The built-in operators by their names and by their ufuncs.
NAMED: dict[Any, Operator] = BUILTIN | {built.numpy: built for built in BUILTIN.values()}


def unloaded(op: Operator) -> Operator:
    """Return the built-in operator that combines elements as ``op`` does after its ``load``.

    Without ``load``, or if there is no such operator, ``op`` itself.
    """
    return op if op.load is None or not op.is_ufunc else NAMED.get(op.numpy, op)


# NumPy accumulates these in a loop. A scan in parts would give other results.
_NOT_ASSOCIATIVE = {
    np.subtract,
    np.divide,
    np.floor_divide,
    np.remainder,
    np.fmod,
    np.power,
    np.float_power,
    np.left_shift,
    np.right_shift,
    np.ldexp,
    np.arctan2,
    np.heaviside,
    np.nextafter,
}
_COMPARISONS = {
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
}


@lru_cache(maxsize=64)  # the cache of plans compares operators by identity
def _of_ufunc(ufunc: np.ufunc) -> Operator:
    """Return the operator of a ufunc that is not built in; raise ValueError if it cannot be one."""
    name = ufunc.__name__
    if ufunc.nin != 2:
        operands = "1 operand" if ufunc.nin == 1 else f"{ufunc.nin} operands"
        raise ValueError(f"ufunc {name!r} takes {operands}; a scan combines two")
    if ufunc.nout != 1:
        raise ValueError(f"ufunc {name!r} has {ufunc.nout} results; a scan combines two into one")
    if ufunc.signature is not None:
        raise ValueError(f"ufunc {name!r} takes {ufunc.signature}; a scan combines elements")
    if ufunc in _COMPARISONS:
        raise ValueError(f"ufunc {name!r} compares: a scan cannot combine its results further")
    if ufunc in _NOT_ASSOCIATIVE:
        raise ValueError(
            f"ufunc {name!r} is not associative: a scan in parts would differ from NumPy's loop"
        )
    return Operator(name, ufunc)


def resolve(op: "str | np.ufunc | Operator") -> Operator:
    """Return the operator for a name, a NumPy ufunc or an ``Operator``.

    A ufunc that is not built in becomes ``Operator(name, ufunc)``, without a CUDA form.

    >>> resolve("sum") is resolve(np.add)
    True
    """
    if isinstance(op, Operator):
        return op
    if isinstance(op, np.ufunc):
        return NAMED.get(op) or _of_ufunc(op)
    if not isinstance(op, str):
        text, wrap = type(op).__name__, ""
        if callable(op):
            text = f"the function {getattr(op, '__name__', text)}"
            wrap = "; wrap a function of two arrays in distscan.Operator"
        raise TypeError(
            f"op must be a name, a NumPy ufunc, an MPI op or an Operator, not {text}{wrap}"
        )
    if op in BUILTIN:
        return BUILTIN[op]
    if op == "fsum":
        raise ValueError("operator 'fsum' has no form of its own: scan, Plan and scan_file take it")
    raise ValueError(
        f"unknown operator {op!r}; choose from {', '.join(BUILTIN)}, fsum, or pass an Operator"
    )


# ---- sums and products without NaN: it is replaced as elements are read ----------------------


def _skipping(op: str, instead: int, cuda: str) -> Operator:
    """Return the operator ``op`` on elements of which ``instead`` replaces every NaN."""

    def load(x: Any) -> Any:
        replaced = x.copy()
        np.putmask(replaced, np.isnan(x), instead)  # a third faster than np.where
        return replaced

    return replace(BUILTIN[op], load=load, cuda_load=f"is_nan(x) ? {cuda} : x")


#: The operators by the names of those that they are without NaN.
SKIPPING_NAN = {"sum": _skipping("sum", 0, "T{}"), "prod": _skipping("prod", 1, "convert<T>(1)")}


# ---- calls of the functions of operators: results are checked, faults named ------------------


def combine_arrays(
    name: str, function: Callable[..., Any], earlier: NDArray[Any], later: NDArray[Any]
) -> Any:
    """Return the combination of two arrays of one shape by the function of operator ``name``.

    The operands are read-only to the function. Raises TypeError or ValueError if the result has
    another shape, or a type that does not fit.
    """
    later = _read_only(later)  # the result of broadcast_to is read-only already
    return _check_result(name, later, _call(name, "numpy", lambda: function(earlier, later)))


@np.errstate(all="ignore")
def load_into(name: str, load: Callable[..., Any], x: NDArray[Any], to: NDArray[Any]) -> None:
    """Store elements, as operator ``name`` loads them, to ``to``, whose type ``load`` takes."""
    to[...] = x
    if x.size > 0:
        elements = _read_only(to)
        to[...] = _check_result(name, elements, _call(name, "load", lambda: load(elements)))


def combine_fields(
    name: str, function: Callable[..., Any], earlier: NDArray[Any], later: NDArray[Any]
) -> NDArray[Any]:
    """Return the combination of two tuples of arrays by the function of operator ``name``.

    The fields of two structured arrays are passed as tuples, and the results come back as one
    structured array. Raises TypeError or ValueError as ``combine_arrays`` does.
    """
    names = later.dtype.names or ()
    operands = [tuple(_read_only(array[name]) for name in names) for array in (earlier, later)]
    results = _call(name, "numpy", lambda: function(*operands))
    if not isinstance(results, tuple | list | np.ndarray) or len(results) != len(names):
        kind = f"{len(results)} arrays" if hasattr(results, "__len__") else type(results).__name__
        raise TypeError(f"operator {name!r} returned {kind}; it must return {len(names)} arrays")
    out = np.empty(later.shape, later.dtype)
    for i, (field, result) in enumerate(zip(names, results, strict=True)):
        out[field] = _check_result(f"{name}, array {i}", operands[1][i], result)
    return out


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array = array.view()
    array.flags.writeable = False
    return array


def _call(name: str, argument: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call; known faults name the operator, and which of its functions."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        named = _explain(name, argument, error)
        if named is None:
            raise
        raise named from error


def _check_result(name: str, operand: NDArray[Any], result: Any) -> Any:
    """Return a result; check that it has the type and shape of the operand."""
    if result is None:
        raise TypeError(f"operator {name!r} returned None; it must return an array")
    if np.shape(result) != operand.shape:
        raise ValueError(
            f"operator {name!r} returned shape {np.shape(result)} for operands of shape "
            f"{operand.shape}"
        )
    kind = _kind(result)
    if not (kind.hasobject or np.can_cast(kind, operand.dtype, "same_kind")):
        raise TypeError(
            f"operator {name!r} returned {kind} for {operand.dtype}; its result must be of the "
            "type of its operands"
        )
    # The caller casts the result. The cast of a NumPy scalar out of bounds would raise.
    return np.asarray(result) if isinstance(result, np.generic) else result


def _explain(name: str, argument: str, error: TypeError | ValueError) -> Exception | None:
    """Return a clearer exception for a known fault of an operator's function; else None."""
    if "read-only" in str(error):
        return ValueError(
            f"operator {name!r} writes into an operand ({error}); "
            "it must leave both alone and return a new array"
        )
    if "arrays can be converted to" in str(error) or "truth value of an array" in str(error):
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(
            f"operator {name!r}: its {argument}= function does not take arrays ({error}); "
            "numpy.vectorize or numpy.frompyfunc makes one that does"
        )
    return None


def _kind(result: Any) -> np.dtype[Any]:
    """Return the type of a result; for Python's objects, the type that NumPy gives their values.

    >>> _kind(np.zeros(3, "f4")), _kind(np.array([1, 2], object)), _kind([1j])
    (dtype('float32'), dtype('uint8'), dtype('complex128'))
    """
    if isinstance(result, np.ndarray | np.generic) and result.dtype != object:
        return result.dtype
    values = np.array(np.asarray(result, object).tolist())
    # Python's integers fit every integer type; a value out of bounds is an OverflowError later.
    return np.dtype(np.uint8) if values.dtype.kind in "iu" else values.dtype


# ---- the maps of linear recurrences ----------------------------------------------------------


def _then(earlier: Any, later: Any) -> Any:
    """Compose the maps h -> a h + b: first ``earlier``, then ``later``."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def _then_in_segments(earlier: Any, later: Any) -> Any:
    """Compose maps that also say whether a segment begins: the state before it is 0."""
    begins = later[2]
    before = [np.where(begins, each.dtype.type(0), each) for each in earlier[:2]]
    return *_then(before, later), earlier[2] | begins


MAPS = Operator(
    "linear_recurrence", _then, "{b.x0 * a.x0, b.x0 * a.x1 + b.x1}", identity=(1, 0), arity=2
)
#: The maps g -> a (dh + g) of a recurrence's backward pass, from factors a and gradients dh. GPUs
#: alone scan them, down columns; kernels/columns/store.cuh says what they store.
GRADIENT_MAPS = Operator(
    "gradients of linear_recurrence",
    _then,
    MAPS.cuda,
    identity=(1, 0),
    arity=2,
    cuda_load="{x.x0, x.x0 * x.x1}",
)
#: Of columns: segments begin where x2 is True. The state before a segment is 0.
MAPS_IN_SEGMENTS = Operator(
    "linear_recurrence in segments",
    _then_in_segments,
    """const T before = b.x2 ? T{} : a;
    return T{b.x0 * before.x0, b.x0 * before.x1 + b.x1, before.x2 || b.x2};""",
    identity=(1, 0, False),
    arity=3,
)


@cache
def in_segments(name: str) -> Operator:
    """Return a built-in operator on pairs: an element, and whether a segment begins there."""
    op = BUILTIN[name]
    assert op.cuda is not None

    def combine(earlier: Any, later: Any) -> tuple[Any, Any]:
        return np.where(later[1], later[0], op.numpy(earlier[0], later[0])), earlier[1] | later[1]

    text = re.sub(r"\b([ab])\b", r"\1.x0", op.cuda)
    return Operator(f"{name} in segments", combine, f"b.x1 ? b : T{{{text}, a.x1}}", arity=2)


@cache
def matrix_maps(size: int, *, segments: bool = False) -> Operator:
    """Return the operator that composes affine maps of vectors: h -> a h + b, ``size`` numbers.

    An element has the entries of a, row by row, then those of b; with ``segments``, also whether a
    segment begins there. What comes before a segment is left out.

    >>> matrix_maps(1).cuda
    'return T{b.x0 * a.x0, b.x0 * a.x1 + b.x1};'
    """
    rows, factors = range(size), size * size
    head = factors + size  # the number of the field

    def then(earlier: Any, later: Any) -> tuple[Any, ...]:
        products = [
            sum(later[i * size + k] * earlier[k * size + j] for k in rows)
            for i in rows
            for j in rows
        ]
        terms = [
            sum((later[i * size + k] * earlier[factors + k] for k in rows), later[factors + i])
            for i in rows
        ]
        if not segments:
            return *products, *terms
        pairs = zip(later[:head], [*products, *terms], strict=True)
        return *(np.where(later[head], *pair) for pair in pairs), earlier[head] | later[head]

    products = [
        " + ".join(f"b.x{i * size + k} * a.x{k * size + j}" for k in rows)
        for i in rows
        for j in rows
    ]
    terms = [
        " + ".join([*(f"b.x{i * size + k} * a.x{factors + k}" for k in rows), f"b.x{factors + i}"])
        for i in rows
    ]
    fields = [*products, *terms, *([f"a.x{head}"] if segments else [])]
    return Operator(
        f"linear_recurrence of {size} x {size} matrices" + " in segments" * segments,
        then,
        f"if (b.x{head}) return b;\n" * segments + f"return T{{{', '.join(fields)}}};",
        identity=(*np.eye(size).flat, *np.zeros(size), *[False] * segments),
        arity=head + segments,
    )


# ---- predicates ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition on one element, for ``select``.

    Attributes
    ----------
    name
        The name in errors. It must be the same on every rank.
    numpy
        A function of an array [n] that returns a bool array [n], and does not change its argument.
        It is not called for empty arrays.
    cuda
        CUDA C++ that tells whether the element ``x``, of type ``T``, is kept. It is an expression,
        or, if it contains ``return``, the body of a function. ``T`` is the type of the array:
        ``float`` for float16, bfloat16 and float32; complex numbers have the parts ``x.re`` and
        ``x.im``. None: the predicate works on CPUs only.

    Raises
    ------
    TypeError
        If ``numpy`` is not a function or ``cuda`` is not text. Faults inside ``cuda`` are found
        when it is compiled: then every rank raises ``KernelError``, with the compiler's message and
        the line in ``cuda``.

    Notes
    -----
    Both forms should keep the same elements, also of NaN: NaN > 0 is false in both. NumPy gives no
    warnings while a predicate runs.

    Examples
    --------
    >>> import distscan, numpy
    >>> odd = distscan.Predicate("odd", numpy=lambda x: x % 2 != 0, cuda="x % 2 != 0")
    >>> distscan.select(numpy.array([3, 1, 4, 1, 5]), odd)
    (array([3, 1, 1, 5]), 0)
    """

    name: str
    numpy: Callable[[Any], Any]
    cuda: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name= of a predicate must be text, not {type(self.name).__name__}")
        if not callable(self.numpy):
            raise TypeError(f"predicate {self.name!r}: numpy= must be a function of an array")
        if not isinstance(self.cuda, str | None):
            raise TypeError(f"predicate {self.name!r}: cuda= must be text, or None")

    def mask(self, x: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which elements of ``x`` [n] are kept, as bools [n]; overflow is silent."""
        if x.size == 0:
            return np.zeros(x.shape, np.bool_)
        x = x.view()
        x.flags.writeable = False
        with np.errstate(all="ignore"):
            mask = np.asarray(self.numpy(x))
        if mask.dtype != np.bool_ or mask.shape != x.shape:
            raise TypeError(
                f"predicate {self.name!r} returned {mask.dtype} {mask.shape} for {x.dtype} "
                f"{x.shape}; its result must be bool, of the shape of its argument"
            )
        return mask
