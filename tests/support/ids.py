"""Ids of parametrised tests, short and typed easily: letters, digits and ``-_.,:`` alone."""

import re
from typing import Any

LONGEST = 32  # of one value
SPELT = {"?": "bool", "<": "le_", ">": "be_"}  # as in codes of types


def short(value: Any, parameter: str) -> str | None:
    """The id of one value of a parameter; None where pytest's own will do.

    >>> short({"exclusive": True, "initial": None, "reverse": True}, "form")
    'exclusive-reverse'
    >>> short((7, 5), "shape"), short("?", "code"), short("x is <U1; a scan takes no text", "why")
    ('7x5', 'bool', 'x_is_le_U1_a_scan_takes_no_text')
    """
    if isinstance(value, dict):
        given = [key for key, each in value.items() if each is not None and each is not False]
        value = "-".join(given) or "plain"
    elif isinstance(value, tuple) and "shape" in parameter:
        value = "x".join(map(str, value)) or "0d"
    elif isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = " ".join(value) or "plain"
    elif isinstance(value, float | complex):
        value = str(value).strip("()").replace("+", "")
    elif getattr(value, "__name__", "") == "<lambda>":
        value = parameter
    elif isinstance(getattr(value, "name", None), str):  # operators, types, kernels
        value = value.name
    return plain(value) or parameter if isinstance(value, str) else None


def plain(text: str) -> str:
    """Keep the words of a text, as many as there is room for; without any, it is "none"."""
    if not text:
        return "none"
    for character, word in SPELT.items():
        text = text.replace(character, word)
    words = [word.strip("-_.,:") for word in re.findall(r"[A-Za-z0-9_.,:-]+", text)]
    made = ""
    for word in words:
        if len(made) + len(word) >= LONGEST:
            break
        made += f"_{word}" if word else ""
    return (made or "".join(words)[:LONGEST]).strip("_")
