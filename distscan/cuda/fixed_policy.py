"""The tuning numbers of exact sums, and the measurements that they come from; see ``policy.py``."""

from ..core.dtypes import Types
from ..core.form import Form
from ..fsum.words import ONE_WORD, TWO_WORDS


def is_fixed(types: Types) -> bool:
    """Return whether floats are added as integers: ``Fixed`` of kernels/base/fixed.cuh."""
    return types.acc == TWO_WORDS or (types.acc == ONE_WORD and types.x.kind not in "biu")


def fixed_shape(types: Types, form: Form, arch: str, items: int) -> tuple[int, int, int]:
    """Return the threads, rows and items of a tile of exact sums; ``items`` fill a vector.

    Beside 7 reducers, 2 look-ahead warps and the loader, 14 warps are the most that have 80
    registers. A lane takes two vectors at once: so it takes half as many shuffles. H200, sm_90,
    2^28 elements, microseconds; ``wide`` has elements of two words::

        threads  reducers  look-ahead warps  rows  items  float32  the same, wide  float64
        sums of two words
            448         7                 2     2   8, 4      876            1165     1558
            512         8                 2     2   8, 4      838            1133     1493  spills
            512         8                 3     2   8, 4      863            1135     1563  spills
            480         5                 3     2   8, 4      875
            384         6                 3     2   8, 4      901                     1743
            512         4                 3     4   4, 2      939                     1759
            256         4                 3  4, 6   4, 2     1212                     2159
        sums of one word
            448         7                 2  2, 4   8, 2      559                     1063
            384         6                 2  2, 4   8, 2      566                     1080
            256         4                 2     6   4, 2      599                     1061
        a sum of floats                                       550                     1091

    The same shapes are the best, or nearly so, where reducers check elements: 10 of them beside 320
    threads take 16 us less for float32 in one word. A pass over the elements takes 200 us of
    float16, 290 of float32 and 540 of float64::

        threads  reducers  rows   items  sums      float16  float32  float64
            448         7  2, 4    8, 2  one word               553     1065
            448         7  2, 4    8, 2  checked                657     1066
            448         7     2    8, 4  two words              877     1280
            448         7     2    8, 4  checked                935     1401
            448         7     2    8, 4  wide                  1150     1502
            448         7     2    8, 4  checked               1228     1550
            256         4     2      16  one word      505
            256         4     2      16  checked       752
            256         8     2      16  one word      515  spills
            256         8     2      16  checked       583  spills
            192         6     2      16  one word      585
            192         6     2      16  checked       673
    """
    two = types.acc == TWO_WORDS
    if arch != "90":
        return 256, 1 if types.out.itemsize < 4 else 2 if two else 4, min(items, 8)
    if types.out.itemsize < 4:  # more registers: they are rounded twice
        return 256, 2, 8 if two else 16
    if two:
        return 448, 1 if form.exclusive or form.reverse else 2, min(2 * items, 8)
    return (448, 4, items) if types.out.itemsize == 8 else (448, 2, 8)


def fixed_reducers(threads: int) -> int:
    """Return the number of reducers beside so many threads that scan."""
    return 7 if threads == 448 else 4
