"""``python -m distscan.bench``: this project and its peers, side by side in one run.

Imports run down this list only:

    __main__.py      the run, its exit status
    arguments.py     what the command line takes
    plot.py          the SVG
    against.py       the comparison with an earlier run
    report.py        header, tables, JSON
    suite.py         every type and size: who is there, is it right, how fast
    contenders.py    who runs
    by_hand.py       the scan over ranks as people write it
    cub.py  cub.cu   CUB, called from C++
    timing.py        how a call is timed
    case.py          one type and size: its data, its buffers, the check of a result
    machine.py       the chip: NumPy or CuPy, its cache, its memory, its clock
"""
