"""The macros and headers that ``kernels/config.cuh`` needs: types, operator, form, policy."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types, is_bfloat16
from ..core.form import Form
from ..core.operators import BUILTIN, GRADIENT_MAPS, LOGICAL, Operator, Predicate, TypedOperator
from ..fsum.words import checks

# ---- the types of running values in registers ------------------------------------------------

# LogSum of kernels/base/types.cuh. The number is max + log(1 + rest).
_LOG_SUMS = {
    real: np.dtype([("max", real), ("rest", real)])
    for real in (np.dtype(np.float32), np.dtype(np.float64))
}


def register_types(op: Operator, types: Types) -> Types:
    """Return the types in registers.

    Built-in operators scan narrow integers and bools in 32 bits. The low bits of the results are
    the same. There are two exceptions. The first is an x that is wider than the running value: as
    int8, the maximum of 300 and 50 is 50. The second is a result that is wider: 100 + 100 as int8
    is -56, also in an int64.

    The operator logaddexp keeps sums of exponentials, and takes their logarithms at the store.
    """
    x, acc, out = types.x, types.acc, types.out
    if BUILTIN.get(op.name) is not op:
        return types
    if op.numpy is np.logaddexp:
        return Types(x, _LOG_SUMS[acc], out)
    low = out.kind in "iu" and out.itemsize <= acc.itemsize
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc) and low
    # The sum of bools is an exception: 2 ** 32 times True would make 0.
    truths = acc == np.bool_ and (op in LOGICAL or (x == acc and op.name != "sum"))
    if not (narrow or truths):
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), out)


def is_log_sum(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a type are sums of exponentials."""
    return dtype in _LOG_SUMS.values()


def settable(values: NDArray[Any]) -> NDArray[Any]:
    """Return the part of some running values to which numbers are assigned."""
    if not is_log_sum(values.dtype):
        return values
    values["rest"] = 0
    return values["max"]


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return running values as numbers; narrow integers stay in 32 bits."""
    if not is_log_sum(values.dtype):
        return values
    with np.errstate(all="ignore"):
        numbers: NDArray[Any] = values["max"] + np.log1p(values["rest"])
    return numbers


# ---- definitions of a kernel -----------------------------------------------------------------

# Keys are dtype.kind and the size in bytes. Values are the names in kernels/base/types.cuh.
_TYPES = {
    "b1": "bool",
    "i1": "signed char",
    "i2": "short",
    "i4": "int",
    "i8": "int64",
    "u1": "unsigned char",
    "u2": "unsigned short",
    "u4": "unsigned int",
    "u8": "unsigned long long",
    "f2": "half",
    "f4": "float",
    "f8": "double",
    "c8": "complex<float>",
    "c16": "complex<double>",
}


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a type in the kernels; raise TypeError if no GPU has the type."""
    if dtype.names:
        return f"Fields<{', '.join(type_name(dtype[field]) for field in dtype.names)}>"
    if not dtype.isnative:
        raise TypeError(f"{dtype} is not in the byte order of GPUs")
    name = "bfloat16" if is_bfloat16(dtype) else _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        raise TypeError(f"{dtype} does not exist on a GPU; pass dtype= with a type that does")
    return name


def structure(types: Types) -> str:
    """Declare the structure of the running value in C++, and its conversions.

    An element of ``x`` has as many fields. The result may have fewer, under the same names; other
    fields are not converted.

    >>> pair, h = np.dtype([("x0", "f4"), ("x1", "f4")]), np.dtype([("x1", "f4")])
    >>> print(structure(Types(pair, pair, h)))
    struct Structure { float x0; float x1; };
    template <> inline constexpr bool one_by_one<Structure> = true;
    __device__ inline Structure on_load(Structure x);
    template <class To, class... X> __device__ To convert(Fields<X...> x) {
    if constexpr (same<To, Fields<X...>>) return x;
    else return on_load(Structure{convert<float>(x.first), convert<float>(x.rest.first)}); }
    template <class To> __device__ To convert(Structure x) {
    if constexpr (same<To, Structure>) return x;
    else return {convert<float>(x.x1)}; }
    """
    names = types.acc.names or ()
    declared = "".join(f"{type_name(types.acc[name])} {name}; " for name in names)
    places = [f"x.{'rest.' * i}first" for i in range(len(names))]
    loaded = [
        f"convert<{type_name(types.acc[name])}>({place})"
        for name, place in zip(names, places, strict=True)
    ]
    stored = [
        f"convert<{type_name(types.out[name])}>(x.{name})"
        for name in types.out.names or ()
        if name in names
    ]
    for inner in range(len(stored) - 1, 0, -1):
        stored[inner - 1 :] = [stored[inner - 1], "{" + ", ".join(stored[inner:]) + "}"]
    return (
        f"struct Structure {{ {declared}}};\n"
        "template <> inline constexpr bool one_by_one<Structure> = true;\n"
        "__device__ inline Structure on_load(Structure x);\n"
        "template <class To, class... X> __device__ To convert(Fields<X...> x) {\n"
        "if constexpr (same<To, Fields<X...>>) return x;\n"
        f"else return on_load(Structure{{{', '.join(loaded)}}}); }}\n"
        "template <class To> __device__ To convert(Structure x) {\n"
        "if constexpr (same<To, Structure>) return x;\n"
        f"else return {{{', '.join(stored)}}}; }}"
    )


def body(op: Operator) -> str:
    """Return the body of the operator's C++ function; errors in it name the operator and line."""
    if op.cuda is None:
        raise TypeError(f"operator {op.name!r} has no CUDA form: without cuda= only CPUs scan")
    return _function("operator", op.name, op.cuda)


def _on_load(op: Operator) -> str:
    """Return the body of the C++ function that changes elements as they are read."""
    if op.load is None and op is not GRADIENT_MAPS:
        return "return x;"
    if op.cuda_load is None:
        raise TypeError(f"operator {op.name!r} has load= but no cuda_load=: only CPUs scan")
    return _function("load of operator", op.name, op.cuda_load)


def predicate_body(predicate: Predicate) -> str:
    """Return the body of the predicate's C++ function; errors in it name the predicate and line."""
    if predicate.cuda is None:
        raise TypeError(
            f"predicate {predicate.name!r} has no CUDA form: without cuda= only CPUs select"
        )
    return _function("predicate", predicate.name, predicate.cuda)


def _function(kind: str, name: str, text: str) -> str:
    """Return an expression or the body of a function as the body of a C++ function."""
    start = "" if re.search(r"\breturn\b", text) else "return\n"
    name = re.sub(r"[^\w .-]", "_", name)
    return f'{start}#line 1 "{kind} {name}"\n{text}\n;\n'


def definitions(op: Operator, types: Types, form: Form, **policy: int | str) -> dict[str, object]:
    """Return the macros by their names, and the headers by their file names."""
    return {
        "DISTSCAN_X": type_name(types.x),
        "DISTSCAN_T": _running_name(op, types),
        "DISTSCAN_OUT": _result_name(op, types),
        "DISTSCAN_PARTIAL": _partial(op, types),
        "structure.h": structure(types) if types.x.names else "",
        "combine.h": body(op),
        "load.h": _on_load(op),
        "DISTSCAN_LOADS": str(op.load is not None).lower(),
        "DISTSCAN_COMMUTATIVE": str(op.commutative).lower(),
        "DISTSCAN_EXCLUSIVE": str(form.exclusive).lower(),
        "DISTSCAN_REVERSE": str(form.reverse).lower(),
        **{f"DISTSCAN_{name.upper()}": value for name, value in policy.items()},
    }


def _result_name(op: Operator, types: Types) -> str:
    """Name the type of the result; that of gradients is in kernels/columns/store.cuh."""
    if op is GRADIENT_MAPS and len(types.out.names or ()) == 3:
        return f"Gradients<{type_name(types.out[0])}>"
    return type_name(types.out)


def _running_name(op: Operator, types: Types) -> str:
    """Name the type of the running value. For logical operators, "truth" is a bool in 32 bits."""
    if is_log_sum(types.acc):
        return f"LogSum<{type_name(types.acc['max'])}>"
    if isinstance(op, TypedOperator):
        return op.cuda_type
    if types.acc.names:
        return "Structure"
    return "truth" if op in LOGICAL and types.acc != np.bool_ else type_name(types.acc)


def _partial(op: Operator, types: Types) -> str:
    """Name a type that holds every total of a warp's elements. 32 bits take half the shuffles.

    For elements that are checked, the name is ``Checked`` of the type.
    """
    narrow = types.x.kind in "biu" and types.x.itemsize <= 2 and types.acc.kind in "iu"
    if checks(op):
        return f"Checked<{_running_name(op, types)}>"
    if op is BUILTIN["sum"] and narrow and types.acc.itemsize == 8:
        return "int" if types.x.kind == "i" else "unsigned int"
    return _running_name(op, types)
