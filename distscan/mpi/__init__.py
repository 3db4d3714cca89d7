"""All that speaks to MPI: communicators, agreement, the exchange of totals. Knows no CuPy."""
