"""The page of an explanation: the article, then the pictures and the details of its trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attnshape.model.explanation import ArticleTable, Explanation, Grid
from attnshape.reporters.article import ROW_NAMES, ArticleLines, ArticlePart, ArticleSection, StepRow, article
from attnshape.reporters.columns import wide_columns
from attnshape.reporters.trace_view import ViewOptions, trace_view
from attnshape.reporters.web.document import document
from attnshape.reporters.web.markup import SymbolColors, escaped, page_header, prose
from attnshape.reporters.web.patterns import pattern_figure
from attnshape.reporters.web.trace_page import trace_section
from attnshape.runtime.files import ReadLines, source_lines


def article_document(explanation: Explanation, read_lines: ReadLines = source_lines) -> str:
    """Return the page of an explanation."""
    trace = explanation.trace
    shown = article(explanation, read_lines)
    view = trace_view(trace, ViewOptions(wide_columns(trace)))
    colors = SymbolColors(trace.sizes)
    parts = "\n".join(_part(part, colors) for part in shown.parts)
    details = f'<h2 class="part">The whole trace</h2>\n{trace_section(trace, view, read_lines)}'
    body = f'{page_header("explain", view.header)}\n<main>\n<div class="article">\n{parts}\n</div>\n{details}\n</main>'
    return document(shown.title, body, trace.attnshape)


def _part(part: ArticlePart, colors: SymbolColors) -> str:
    paragraphs = "".join(f"<p>{colors.article(text)}</p>" for text in part.paragraphs)
    sections = "\n".join(_section(section, colors) for section in part.sections)
    return f'<h2 class="part">{prose(part.title)}</h2>\n{paragraphs}\n{sections}'


def _section(section: ArticleSection, colors: SymbolColors) -> str:
    title = f"<h3>{escaped(section.number)} {prose(section.title)}</h3>"
    return f'<section class="panel">\n{title}\n{"".join(_blocks(section, colors))}\n</section>'


def _blocks(section: ArticleSection, colors: SymbolColors) -> Iterator[str]:
    yield from map(_source, section.source)
    if section.rows:
        yield _table_of(map(escaped, ROW_NAMES), [_cells(row, colors) for row in section.rows])
    for block in section.blocks:
        if isinstance(block, ArticleTable):
            yield _table_of(map(colors.article, block.columns), [tuple(map(colors.article, row)) for row in block.rows])
        elif isinstance(block, Grid):
            yield pattern_figure(block.caption, block.rows)
        else:
            label = f"<strong>{escaped(block.label)}</strong> " if block.label else ""
            yield f"<p>{label}{colors.article(block.text)}</p>"


def _cells(row: StepRow, colors: SymbolColors) -> tuple[str, ...]:
    step = f"<code>{escaped(row.step)}</code>"
    return escaped(row.number), step, colors.formula(row.signature), escaped(row.shape), escaped(row.storage)


def _table_of(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of columns; their names and the cells are HTML."""
    head = "".join(f"<th>{name}</th>" if name else "<td></td>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _source(lines: ArticleLines) -> str:
    text = "\n".join(map(escaped, lines.lines))
    caption = f"<figcaption>{escaped(lines.place)}</figcaption>"
    return f'<figure class="source">{caption}<pre tabindex="0">{text}</pre></figure>'
