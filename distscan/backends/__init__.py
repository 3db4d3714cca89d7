"""One file per kind of memory, with the same calls in each."""
