"""Fixtures that every test file shares; the suite runs at any number of ranks."""
