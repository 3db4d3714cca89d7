"""All code that uses MPI: communicators, agreement, the exchange of totals. It uses no CuPy."""
