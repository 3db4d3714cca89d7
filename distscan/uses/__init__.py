"""What scans are for: recurrences, selection, cuts of weights, offsets."""
