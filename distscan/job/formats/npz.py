"""Arrays in archives of ``numpy.savez``, as input: ``FILE.npz::NAME``.

``numpy.savez`` stores arrays as they are: each is a ``.npy`` file inside the archive, and is read
as one. Of ``numpy.savez_compressed`` each rank first unpacks the array into a temporary file.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from ...core.errors import InputError, OutputError
from . import files, npy
from .files import File, Indirect
from .interface import NUMBERS, WINDOW, Fill, Layout, Location, Target, naming_input

_LOCAL = struct.Struct("<4s22xHH")  # of a member's header: sign, lengths of its name and its rest


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> "File | Packed":
    """Find an array of an archive, and check it; without a name, it is the only one."""
    import zipfile  # noqa: PLC0415 - few jobs need it

    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        try:
            with zipfile.ZipFile(stream) as archive:
                info = _find(archive, path, member)
                with archive.open(info) as data:
                    shape, fortran, dtype = npy.read_header(cast(BinaryIO, data))
                    start = data.tell()
        except InputError:
            raise
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
            raise InputError(
                f"{path} is no archive of NumPy's arrays: {error}; write it by numpy.savez"
            ) from None
        stored = info.compress_type == zipfile.ZIP_STORED
        if stored:
            stream.seek(info.header_offset)
            sign, *lengths = _LOCAL.unpack(stream.read(_LOCAL.size))
            if sign != b"PK\x03\x04":
                raise InputError(f"{path} is damaged: an array is not where the archive says")
            start += info.header_offset + _LOCAL.size + sum(lengths)
    name = info.filename.removesuffix(".npy")
    fortran = bool(fortran) and len(shape) > 1
    file = File(path, dtype, shape, start, stamp, fortran, member=name)
    files.check(file, kinds)
    size = file.n * dtype.itemsize + (0 if stored else start)
    if (stamp.size < file.end) if stored else (info.file_size < size):
        raise InputError(f"{file.name} is truncated: it has fewer than {size} bytes")
    return file if stored else Packed(file, info.filename)


def _find(archive: Any, path: Path, member: str) -> Any:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if not member and len(names) != 1:
        if not names:
            raise InputError(f"{path} has no array")
        shown = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
        raise InputError(f"{path} has {shown}: name one, such as {Location(path, names[0])}")
    for info in archive.infolist():
        if info.filename in {f"{member}.npy", member} or not member:
            return info
    raise InputError(f"there is no {Location(path, member)}; arrays: {', '.join(names[:8])}")


class Packed(Indirect):
    """A compressed array of an archive."""

    def __init__(self, file: File, entry: str) -> None:
        super().__init__(file)
        self._entry = entry

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Unpack the array, and yield a function that fills arrays."""
        import shutil  # noqa: PLC0415 - few jobs need them
        import tempfile  # noqa: PLC0415
        import zipfile  # noqa: PLC0415

        with tempfile.NamedTemporaryFile(prefix="distscan-") as unpacked:
            try:
                with zipfile.ZipFile(self.file.path) as archive, archive.open(self._entry) as data:
                    shutil.copyfileobj(data, unpacked, 1 << 20)
                unpacked.flush()
            except (zipfile.BadZipFile, EOFError) as error:
                raise InputError(f"{self.name} is damaged: {error}") from error
            except OSError as error:
                raise InputError(
                    f"cannot unpack {self.name} into {unpacked.name}: {error.strerror}; "
                    "TMPDIR names another folder"
                ) from error
            plain = self.file._replace(path=Path(unpacked.name), stamp=None, member="")
            with plain.reading(flattened=flattened, window=window) as fill:
                yield fill
        assert self.file.stamp is not None
        files.check_unchanged(self.file.path, self.file.stamp)


def create(path: Path, layout: Layout) -> NoReturn:
    """Refuse: the members of an archive are written one after the other."""
    raise OutputError(f"{path}: .npz files are read, not written; name a .npy file")


def reopen(path: Path, layout: Layout) -> Target | None:
    """Return None: there is none."""
    return None
