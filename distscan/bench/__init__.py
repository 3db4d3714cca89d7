"""``python -m distscan.bench``: this project and its peers, side by side in one run.

Imports run down this list only:

    __main__.py      the run, and its exit status
    arguments.py     the arguments of the command line
    plot.py          the report as a picture
    against.py       the comparison with an earlier run
    report.py        the header, the tables and the JSON
    block_scans.py   the block scans and the chains of the literature
    forms.py         every form of a scan on CPUs, at one size
    uses.py          what scans are used for: keys, recurrences, filters, cuts
    suite.py         the checks and the times of all contenders, for every type and size
    contenders.py    the list of contenders
    uses_peers.py    what users would take instead, for each use
    uses_data.py     the uses: their data, distscan's calls
    use.py           one use: its data on a rank, the check of its result
    by_hand.py       the scan over ranks as people write it by hand
    cub.py  cub.cu   CUB, called from C++
    tbb.py  tbb.cpp  oneTBB, called from C++
    copies.py        the copies that are the measure of all contenders
    timing.py        the clocks and the samples of a call
    case.py          one type and size: its data, its buffers, the check of a result
    machine.py       the chip: NumPy or CuPy, its cache, its memory, its clock
"""
