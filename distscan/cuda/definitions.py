"""The macros and headers that ``kernels/config.cuh`` asks for: types, operator, form, policy."""

import re
from typing import Any

import numpy as np

from ..core.dtypes import Types, is_bfloat16
from ..core.form import Form
from ..core.operators import BUILTIN, LOGICAL, Operator

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
_STRUCTURES = (4, 8, 16, 32)  # the sizes in bytes: vectors are aligned to their size


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a type in the kernels; raise TypeError if no GPU has the type."""
    if dtype.names:
        return "Structure"
    name = "bfloat16" if is_bfloat16(dtype) else _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        raise TypeError(f"{dtype} does not exist on a GPU; pass dtype= with a type that does")
    return name


def structure(dtype: np.dtype[Any]) -> str:
    """Declare a structured type in C++; raise TypeError if C++ would lay it out differently.

    >>> structure(np.dtype([("a", "f8"), ("b", "f8")]))
    'struct Structure { double a; double b; };'
    """
    names = dtype.names or ()
    fields = [(name, dtype[name]) for name in names]
    like_c = np.dtype(fields, align=True)
    if dtype.itemsize not in _STRUCTURES:
        raise TypeError(f"{dtype} has {dtype.itemsize} bytes; a GPU takes {_STRUCTURES}")
    if dtype.itemsize != like_c.itemsize or dtype.fields != like_c.fields:
        raise TypeError(f"{dtype} does not lie in memory as in C++; align=True makes one that does")
    for name, field in fields:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise TypeError(f"{name!r} of {dtype} cannot be the name of a field in C++")
        if field.names or field.shape:
            raise TypeError(f"field {name!r} of {dtype} is {field}; on a GPU a field is one number")
    declared = "".join(f"{type_name(field)} {name}; " for name, field in fields)
    return f"struct Structure {{ {declared}}};"


def body(op: Operator) -> str:
    """Return the body of the operator's C++ function; errors in it name the operator and line."""
    if op.cuda is None:
        raise TypeError(f"operator {op.name!r} has no CUDA form: without cuda= only CPUs scan")
    name = re.sub(r"[^\w .-]", "_", op.name)
    start = "" if re.search(r"\breturn\b", op.cuda) else "return\n"
    return f'{start}#line 1 "operator {name}"\n{op.cuda}\n;\n'


def definitions(op: Operator, types: Types, form: Form, **policy: int | str) -> dict[str, object]:
    """Return the macros by their names, and the headers by their file names."""
    return {
        "DISTSCAN_X": type_name(types.x),
        "DISTSCAN_T": _running_name(op, types),
        "DISTSCAN_OUT": type_name(types.out),
        "DISTSCAN_PARTIAL": _partial(op, types),
        "structure.h": structure(types.acc) if types.acc.names else "",
        "combine.h": body(op),
        "DISTSCAN_COMMUTATIVE": str(op.commutative).lower(),
        "DISTSCAN_EXCLUSIVE": str(form.exclusive).lower(),
        "DISTSCAN_REVERSE": str(form.reverse).lower(),
        **{f"DISTSCAN_{name.upper()}": value for name, value in policy.items()},
    }


def _running_name(op: Operator, types: Types) -> str:
    """Name the type of the running value. For logical operators, "truth" is a bool in 32 bits."""
    return "truth" if op in LOGICAL and types.acc != np.bool_ else type_name(types.acc)


def _partial(op: Operator, types: Types) -> str:
    """Name a type that holds every total of a warp's elements. 32 bits take half the shuffles."""
    narrow = types.x.kind in "biu" and types.x.itemsize <= 2 and types.acc.kind in "iu"
    if op is BUILTIN["sum"] and narrow and types.acc.itemsize == 8:
        return "int" if types.x.kind == "i" else "unsigned int"
    return _running_name(op, types)
