"""Ids of tests: in every process the same, short, and such that they can be typed."""

import re

from support.ids import short


def test_every_id_can_be_typed(request):
    found = {item.name.partition("[")[2].removesuffix("]") for item in request.session.items}
    assert not [name for name in found if not re.fullmatch(r"[A-Za-z0-9_.,:-]{0,60}", name)]


def test_values_are_named():
    texts = ["", "?", ">f4", "one of two", "'x' is \\(2,\\)", "*", "no end " * 9]
    assert [short(text, "it") for text in texts] == [
        "none", "bool", "be_f4", "one_of_two", "x_is_2", "it", "no_end_no_end_no_end_no_end_no",
    ]  # fmt: skip
    assert short({"axis": 0, "reverse": False, "initial": None}, "form") == "axis"
    assert short({"reverse": False}, "form") == short([], "options") == "plain"
    assert short(["--reverse", "--initial=0.5"], "options") == "reverse_initial_0.5"
    assert short((), "shape") == "0d"
    assert short(lambda: 0, "function") == "function"
    assert short(1e308, "most") == "1e308"
    assert short(3, "n") is short((1, 2), "version") is None
