"""A scan on one rank and over ranks: what ``scan``, ``Plan`` and file jobs are made of."""
