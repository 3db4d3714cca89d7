"""Every form of a scan, and the same scan by a plan."""

import itertools

import pytest

FORMS = [
    {"exclusive": exclusive, "initial": initial, "reverse": reverse}
    for exclusive, initial, reverse in itertools.product((False, True), (None, 3), (False, True))
]
forms = pytest.mark.parametrize("form", FORMS)
