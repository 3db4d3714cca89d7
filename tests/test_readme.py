"""The Python in README.md runs, and does what it says for each of two ranks."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
# A call, and what rank 0 and rank 1 get, each perhaps with a word on it after a colon.
SAID = re.compile(r"^(distscan\.\S+\(.*\))  # ([^|:\n]+) \| ([^|:\n]+)(?:: .*)?$", re.MULTILINE)


def test_examples(comm, capsys):
    if comm.size > 2:
        pytest.skip("the examples are for one or two ranks")
    text = "\n".join(re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S))
    names = {}
    exec(text, names)
    said = SAID.findall(text)
    assert len(said) >= 12
    with np.printoptions(legacy=False):
        got = [" ".join(str(eval(call, names)).split()) for call, *_ in said]
    if comm.size == 2:
        assert got == [each[comm.rank] for _, *each in said]
    assert capsys.readouterr().out.startswith(f"{comm.rank} [")
