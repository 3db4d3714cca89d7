"""How objects show themselves in a notebook: a table as HTML."""

from collections.abc import Iterable, Sequence

# Pages of notebooks and of documentation centre tables, and leave no space between columns.
_LEFT = "text-align: left; padding: 0 1em 0 0"


def table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; the first cell of each row is its name. All text is escaped."""
    from html import escape  # noqa: PLC0415 - a file job shows no table

    def cell(kind: str, value: object) -> str:
        return f'<{kind} style="{_LEFT}">{escape(str(value))}</{kind}>'

    lines = (
        f"<tr>{cell('th', name)}{''.join(cell('td', value) for value in values)}</tr>"
        for name, *values in rows
    )
    return f'<table style="margin: 0">{cell("caption", title)}{"".join(lines)}</table>'
