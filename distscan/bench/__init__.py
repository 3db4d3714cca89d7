"""``python -m distscan.bench``: this project and its peers, side by side in one run.

Imports run down this list only:

    __main__.py      arguments, exit status
    report.py        header, tables, JSON;  plot.py  the SVG
    suite.py         every type and size: who is there, is it right, how fast
    contenders.py    who runs
    by_hand.py       the scan over ranks as people write it
    cub.py  cub.cu   CUB, called from C++
    timing.py        how a call is timed
    case.py          one type and size: its data, its buffers, the check of a result
    machine.py       the chip: NumPy or CuPy, its cache, its memory, its clock
"""
