"""The page of a comparison: what differs first, then the steps that do, each with what it was and what it is."""

from __future__ import annotations

from attnshape import __version__
from attnshape.model.difference import Difference, FolderDifference
from attnshape.reporters.diff_view import (
    DiffCell,
    DiffColumn,
    DiffRow,
    DiffView,
    diff_view,
    differing_files,
    folder_summary,
)
from attnshape.reporters.trace_view import Header
from attnshape.reporters.web.document import document
from attnshape.reporters.web.markup import SymbolColors, code, escaped, footer_lines, items, page_header


def difference_document(difference: Difference, command: str) -> str:
    """Return the page of a comparison."""
    view = diff_view(difference, command)
    body = f"{page_header('diff', view.header)}\n<main>\n{_section(view, _colors(difference))}\n</main>"
    return document(view.header.target, body, __version__)


def folders_document(differences: FolderDifference, command: str) -> str:
    """Return the page of the comparisons of two folders."""
    title = f"{differences.old} → {differences.new}"
    parts = [page_header("diff", Header(command, title, (), ())), "<main>"]
    summary = items(list(map(escaped, folder_summary(differences))))
    parts.append(f'<section class="panel">\n<h2>Summary</h2>\n{summary}\n</section>\n<div class="results">')
    for file in differing_files(differences):
        section = _section(diff_view(file.difference), _colors(file.difference))
        parts.append(f"<details open>\n<summary>{escaped(file.name)}</summary>\n{section}\n</details>")
    return document(title, "\n".join([*parts, "</div>", "</main>"]), __version__)


def _colors(difference: Difference) -> SymbolColors:
    return SymbolColors({*difference.old.sizes, *difference.new.sizes})


def _section(view: DiffView, colors: SymbolColors) -> str:
    verdicts = [line for line in view.footer if line.tone != "plain"]
    others = [line for line in view.footer if line.tone == "plain"]
    shown = "".join(
        f'<div class="verdict {line.tone}">{text}</div>'
        for line, text in zip(verdicts, footer_lines(verdicts, colors), strict=True)
    )
    sizes = [colors.prose(", ".join(view.header.sizes))] if view.header.sizes else []
    summary = f"{shown}{items([*sizes, *footer_lines(others, colors)])}"
    parts = [f'<section class="panel">\n<h2>Summary</h2>\n{summary}\n</section>']
    if view.rows:
        names = "".join(f'<th scope="col" role="columnheader">{escaped(name)}</th>' for name in view.names)
        rows = "\n".join(_row(view.columns, row, colors) for row in view.rows)
        # on a phone rows are blocks, which are a table only by their roles
        head = f'<thead role="rowgroup"><tr role="row">{names}</tr></thead>'
        table = f'<table role="table">\n{head}\n<tbody role="rowgroup">\n{rows}\n</tbody>\n</table>'
        scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="steps that differ">{table}</div>'
        parts.append(f'<section class="panel steps comparison">\n<h2>Steps</h2>\n{scroll}\n</section>')
    return "\n".join(parts)


def _row(columns: tuple[DiffColumn, ...], row: DiffRow, colors: SymbolColors) -> str:
    cells = "".join(
        _cell(column, cell, colors, row.kind == "folded") for column, cell in zip(columns, row.cells, strict=True)
    )
    number = f'<td role="cell" class="c-number">{escaped(row.number)}</td>'
    return f'<tr role="row" class="row {row.kind}">{number}{cells}</tr>'


def _cell(column: DiffColumn, cell: DiffCell, colors: SymbolColors, is_folded: bool) -> str:
    def shown(text: str) -> str:
        if is_folded or not column.code:
            return escaped(text)
        return colors.formula(text) if column.name == "signature" else code(text)

    content, name = shown(cell.text), f"c-{column.name}"
    if cell.old is not None:
        content, name = f"<del>{shown(cell.old)}</del> <ins>{content}</ins>", f"{name} changed"
    return f'<td role="cell" data-column="{column.name}" class="{name}">{content}</td>'
