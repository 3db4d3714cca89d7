"""The parameters of a kernel, as its machine code describes them."""

import struct
from collections.abc import Iterator

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_HEADER = struct.Struct("<40xQ10xHHH")  # of the sections: offset, size of each, number, names
_SECTION = struct.Struct("<I20xQQ24x")  # name, offset, size
_ATTRIBUTE = struct.Struct("<BBH")  # format, kind, value
_SIZED = 4  # the format whose value is the number of bytes that follow
_PARAMETER_INFO, _PARAMETERS_SIZE = 0x17, 0x19  # EIATTR_KPARAM_INFO, EIATTR_CBANK_PARAM_SIZE
_PARAMETER = struct.Struct("<IHHI")  # index, number, offset; size from bit 18 on


def parameters(code: bytes, function: str) -> list[tuple[int, int]] | None:
    """Return the offset and the size of each parameter of ``function``, in bytes.

    ``code`` is the output of NVRTC. A cubin is an ELF file. Its section ``.nv.info.<function>`` is
    a list of attributes: one for each parameter, and one for the size of all. The result is None
    for PTX, and for a format that is newer than this reader.
    """
    try:
        attributes = [*_attributes(_section(code, f".nv.info.{function}".encode()))]
        described = sorted(
            _PARAMETER.unpack(data)[1:] for kind, _, data in attributes if kind == _PARAMETER_INFO
        )
        (size,) = (value for kind, value, _ in attributes if kind == _PARAMETERS_SIZE)
    except (LookupError, ValueError, struct.error):
        return None
    numbers = [number for number, *_ in described]
    found = [(offset, bits >> 18) for _, offset, bits in described]
    # The description is complete if the numbers have no gap, and the last parameter ends at `size`.
    whole = found and numbers == [*range(len(found))] and sum(found[-1]) == size
    return found if whole else None


def _section(code: bytes, name: bytes) -> bytes:
    """Return the section ``name`` of an ELF file; raise LookupError where there is none."""
    if not code.startswith(_MAGIC):
        raise LookupError("not an ELF file")
    begin, each, number, of_names = _HEADER.unpack_from(code)
    sections = [_SECTION.unpack_from(code, begin + i * each) for i in range(number)]
    _, offset, size = sections[of_names]
    names = code[offset : offset + size]
    for at, offset, size in sections:
        if names[at:].startswith(name + b"\0"):
            return code[offset : offset + size]
    raise LookupError(f"no section {name!r}")


def _attributes(section: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the kind, the value and the bytes of each attribute."""
    at = 0
    while at < len(section):
        form, kind, value = _ATTRIBUTE.unpack_from(section, at)
        at += _ATTRIBUTE.size
        size = value if form == _SIZED else 0
        yield kind, value, section[at : at + size]
        at += size
