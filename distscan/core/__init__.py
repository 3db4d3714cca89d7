"""What a scan is, whoever runs it: operators, types, order, extents, segments, arrays."""
