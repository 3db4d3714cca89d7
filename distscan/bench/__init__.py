"""``python -m distscan bench``: this project and its peers, side by side in one run.

Imports run down this list only:

    __main__.py      the arguments, the run and its exit status, the comparison with an earlier run
    report.py        the header, the tables, the JSON, the report as a picture
    textbook.py      the block scans and the chains of the literature, and their kernel
    uses.py          uses of scans, keys, recurrences, filters, cuts: their data, checks, peers
    contenders.py    the contenders; copies, their measure; oneTBB, by tbb.cpp; scans by hand
    cub.py  cub.cu   CUB, called from C++
    case.py          one type and size: its data, its buffers, the check of a result; all forms
    timing.py        the chip; trials: checks, times in turns, shares of the copy's speed
"""
