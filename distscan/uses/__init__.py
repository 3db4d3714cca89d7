"""Uses of scans: recurrences, selection, cuts of weights, offsets."""
