"""The tables that objects show in notebooks."""

from xml.etree import ElementTree


def rows(html):
    """Return the rows of all tables of an HTML text: the text of the first cell, and of the others.

    The text must be well-formed. Several cells beside the first are joined by spaces.
    """
    found = {}
    for row in ElementTree.fromstring(f"<div>{html}</div>").iter("tr"):
        name, *cells = (cell.text or "" for cell in row)
        found[name] = " ".join(filter(None, cells))
    return found
