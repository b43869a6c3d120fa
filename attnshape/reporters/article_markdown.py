"""An article as Markdown: for `--format markdown`, and in pieces for the cells of a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnshape.model.explanation import ArticleTable, Explanation, Grid
from attnshape.reporters.article import ROW_NAMES, Article, ArticlePart, ArticleSection, StepRow, article
from attnshape.reporters.escaping import code, code_cell, prose, prose_cell, prose_with_code
from attnshape.reporters.markdown_blocks import fenced, markdown_table
from attnshape.reporters.report_view import drawn_row
from attnshape.runtime.files import source_lines


def explanation_markdown(explanation: Explanation) -> str:
    """Return an explanation as one document of Markdown."""
    shown = article(explanation, source_lines)
    parts = [article_heading(shown)]
    for part in shown.parts:
        parts.append(part_heading(part))
        parts += map(section_markdown, part.sections)
    return "\n\n".join(parts) + "\n"


def article_heading(shown: Article) -> str:
    """Return the title of an article, and the command that made it."""
    return "\n\n".join([_heading("#", prose(shown.title)), *filter(None, [code(shown.command)])])


def part_heading(part: ArticlePart) -> str:
    """Return the title of a part, and its own paragraphs."""
    return "\n\n".join([_heading("##", prose_with_code(part.title)), *map(prose_with_code, part.paragraphs)])


def _heading(level: str, text: str) -> str:
    # number signs at the end of a heading would be taken for its closing sequence
    shown = re.sub(r" (#+)$", r" \\\1", text)
    return f"{level} {shown}"


def section_markdown(section: ArticleSection) -> str:
    """Return a section: its lines of source, the rows of its steps, and what is said about them."""
    return "\n\n".join(_blocks(section))


def _blocks(section: ArticleSection) -> Iterator[str]:
    yield _heading("###", f"{section.number} {prose_with_code(section.title)}")
    for lines in section.source:
        yield f"{code(lines.place)}\n\n{fenced(list(lines.lines), 'python')}"
    if section.rows:
        yield markdown_table([ROW_NAMES, *map(_row, section.rows)], numbered=True)
    for block in section.blocks:
        if isinstance(block, ArticleTable):
            yield _table(block)
        elif isinstance(block, Grid):
            yield f"{prose_with_code(block.caption)}\n\n{fenced(list(map(drawn_row, block.rows)), 'text')}"
        else:
            yield (f"**{block.label}** " if block.label else "") + prose_with_code(block.text)


def _row(row: StepRow) -> tuple[str, ...]:
    return row.number, code_cell(row.step), code_cell(row.signature), prose_cell(row.shape), prose_cell(row.storage)


def _table(table: ArticleTable) -> str:
    return markdown_table([tuple(map(prose_cell, row)) for row in (table.columns, *table.rows)])
