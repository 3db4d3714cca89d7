"""The local steps of a scan on CuPy arrays: kernels, launches, memory. Nothing here uses MPI."""
