"""A digest of an operator: of its texts, of the code of its functions, and of the values they use.

Functions in C, modules, and objects that cannot be pickled have no content that Python can read:
they count by their names. Functions and classes of Python and of installed packages count by their
names and the version of their package, and functions also by the values that they enclose.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented))
_CODE = ("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount",
         "co_kwonlyargcount", "co_varnames", "co_freevars", "co_cellvars", "co_names")  # fmt: skip
#: Attributes of a class that Python adds, or that change no result.
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__slots__",
               "__slotnames__",
               "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
               "__firstlineno__", "__static_attributes__", "__abstractmethods__",
               "_abc_impl"}  # fmt: skip
#: Packages whose functions count by their names, also if an operator is one of them.
_BY_NAME = {"numpy", "distscan"}


def fingerprint(values: dict[str, Any]) -> str:
    """Return a digest of values by name, 32 hexadecimal digits.

    Functions among ``values`` count by their code, even if they are of an installed package.

    >>> fingerprint({"cuda": "a + b"}) == fingerprint({"cuda": "a - b"})
    False
    """
    packages = {_package(value) for value in values.values() if isinstance(value, FunctionType)}
    content = _Content(frozenset(packages - _BY_NAME - sys.stdlib_module_names))
    return content.of(values).hex()


class _Content:
    """Digests of values, each by the digests of its parts."""

    def __init__(self, packages: frozenset[str]) -> None:
        """Functions of ``packages`` count by their code, wherever these are installed."""
        self._packages = packages
        self._open = dict[int, int]()  # the depths of values whose parts are being digested
        self._digests = dict[int, bytes]()  # by address
        self._alive = list[Any]()  # the values, so that no other value gets such an address

    def of(self, value: Any) -> bytes:
        """Return the digest of a value, and of all that it refers to."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value))
        address = id(value)
        if address in self._open:  # it refers to itself
            return _hash("open", str(self._open[address]))
        if address not in self._digests:
            self._open[address] = len(self._open)
            self._alive.append(value)
            self._digests[address] = self._of_parts(value)
            del self._open[address]
        return self._digests[address]

    def _of_parts(self, value: Any) -> bytes:
        match value:
            case tuple() | list() if type(value) in (tuple, list):
                return self._of_all(type(value).__name__, value)
            case set() | frozenset() if type(value) in (set, frozenset):
                return _hash("set", *sorted(map(self.of, value)))
            case dict() | MappingProxyType() if type(value) in (dict, MappingProxyType):
                items = sorted((self.of(key), self.of(item)) for key, item in value.items())
                return _hash("dict", *(each for item in items for each in item))
            case np.ndarray() if type(value) is np.ndarray:
                objects = value.ravel().tolist() if value.dtype.hasobject else None
                content = value.tobytes() if objects is None else self.of(objects)
                return _hash("array", repr(value.dtype), repr(value.shape), content)
            case np.dtype():
                return _hash("dtype", repr(value))
        return self._of_code(value)

    def _of_code(self, value: Any) -> bytes:
        result: bytes
        match value:
            case FunctionType():
                result = self._of_function(value)
            case CodeType():
                parts = [getattr(value, name, None) for name in _CODE]
                result = self._of_all("code", [*parts, value.co_consts])
            case MethodType():
                result = self._of_all("method", (value.__func__, value.__self__))
            case staticmethod() | classmethod():
                result = self._of_all(type(value).__name__, (value.__func__,))
            case property():
                result = self._of_all("property", (value.fget, value.fset, value.fdel))
            case type():
                result = self._of_class(value)
            case np.ufunc():
                result = _hash("ufunc", value.__name__, repr(value.types))
            case BuiltinFunctionType():
                owner = None if isinstance(value.__self__, ModuleType) else value.__self__
                name = f"{value.__module__}.{value.__qualname__}"
                result = _hash("builtin", name, self.of(owner))
            case ModuleType():
                result = _hash("module", value.__name__, _version(value.__name__))
            case _:
                result = self._of_object(value)
        return result

    def _of_function(self, function: FunctionType) -> bytes:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        defaults = function.__defaults__, function.__kwdefaults__
        parts = [self.of(cells), self.of(defaults), self.of(vars(function))]
        if self._counts_by_name(function):
            name = f"{function.__module__}.{function.__qualname__}"
            return _hash("function", name, _version(function.__module__), *parts)
        names = _names(function.__code__)
        values = self._of_names(function.__globals__, names)
        return _hash("function", function.__name__, self.of(function.__code__), *parts, *values)

    def _of_names(self, scope: dict[str, Any], names: set[str]) -> list[bytes]:
        """Return the digests of those names that a module has, and of their values.

        If one stands for a module, the other names are looked for in it, too.
        """
        parts = []
        for name in sorted(names & scope.keys()):
            value, inside = scope[name], list[bytes]()
            if isinstance(value, ModuleType) and not self._counts_by_name(value):
                inside = self._of_names(vars(value), names - {name})
            parts.append(_hash("name", name, self.of(value), *inside))
        return parts

    def _of_class(self, kind: type) -> bytes:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if self._counts_by_name(kind):
            return _hash("class", name, _version(kind.__module__))
        described = MemberDescriptorType, GetSetDescriptorType
        scope = {each: value for each, value in vars(kind).items()
                 if each not in _OF_CLASSES and not isinstance(value, described)}  # fmt: skip
        return _hash("class", name, self.of(kind.__bases__), self.of(scope))

    def _of_object(self, value: Any) -> bytes:
        """Return the digest of an object, by its class and by its parts, as pickle has them."""
        kind, parts = self.of(type(value)), None
        for name in ("__wrapped__", "py_func"):  # of decorators, of Numba
            if isinstance(function := getattr(value, name, None), FunctionType):
                return _hash("object", kind, self.of(function))
        with suppress(Exception):  # objects that cannot be pickled count by their class alone
            parts = value.__reduce_ex__(4)
        if isinstance(parts, tuple):
            parts = [list(part) if hasattr(part, "__next__") else part for part in parts]
        return _hash("object", kind, self.of(parts))

    def _of_all(self, kind: str, values: Iterable[Any]) -> bytes:
        return _hash(kind, *map(self.of, values))

    def _counts_by_name(self, value: Any) -> bool:
        """Return whether a function, a class or a module is Python's, or of another package."""
        package = _package(value)
        if package in self._packages:
            return False
        if package in _BY_NAME or package in sys.stdlib_module_names:
            return True
        path = getattr(sys.modules.get(package), "__file__", None) or ""
        return "site-packages" in path or "dist-packages" in path


def _hash(*parts: str | bytes) -> bytes:
    """Return a digest of some parts, in this order."""
    from hashlib import blake2b  # noqa: PLC0415 - it loads OpenSSL, and few jobs need it

    state = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        state.update(b"%d:" % len(data) + data)
    return state.digest()


def _package(value: Any) -> str:
    """Return the name of the package of a function, a class or a module."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return str(name).partition(".")[0]


def _version(module: str | None) -> str:
    version = getattr(sys.modules.get(str(module).partition(".")[0]), "__version__", "")
    return version if isinstance(version, str) else ""


def _names(code: CodeType) -> set[str]:
    """Return all names in code, and in the code of functions inside it."""
    inside = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names}.union(*inside)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


# ---- a short number that tells texts apart -------------------------------------------------------

# A hash of ``hashlib`` would load OpenSSL: 3 ms a rank.
_PRIME = 2**63 - 25  # the largest prime of 63 bits


def digest(data: bytes) -> int:
    """Return the remainder of bytes, as one integer, by a prime (Karp and Rabin, 1987).

    Two random texts have the same digest with probability 2^-63. Texts that differ in at most 7
    neighbouring bytes have different digests. The digest does not resist texts made to match.

    >>> digest(b"") == digest(bytes(1))
    False
    """
    return int.from_bytes(data + b"\x01", "little") % _PRIME
