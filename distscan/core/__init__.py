"""The definition of a scan, for every backend: operators, types, extents, segments, arrays."""

from . import locks as locks  # what a fork does to them
