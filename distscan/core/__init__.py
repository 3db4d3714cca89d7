"""The definition of a scan, for every backend: operators, types, extents, segments, arrays."""
