"""The local steps of a scan on NumPy arrays. Knows no MPI."""
