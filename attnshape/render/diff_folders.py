"""The differences between two folders: one summary, then each file that differs under a heading."""

from __future__ import annotations

from attnshape.comparing.folders import Differences, FileDifference
from attnshape.render import diff_markdown, diff_table
from attnshape.render.diff_view import view
from attnshape.render.fold import fold_command, fold_words
from attnshape.render.lines import Line, drawn
from attnshape.render.numbers import count
from attnshape.render.text import code, prose, visible


def markdown(differences: Differences, command: str) -> str:
    """Return the differences as Markdown."""
    parts = [code(visible(command))] if command else []
    parts.append(f"**{prose(f'{differences.old} → {differences.new}')}**")
    parts.append("\n".join(f"- {prose(text)}" for text in _summary(differences)))
    for file in _differing(differences):
        parts += [f"## {prose(file.name)}", diff_markdown.markdown(view(file.difference)).rstrip()]
    return "\n\n".join(parts) + "\n"


def table(differences: Differences, command: str, width: int, color: bool) -> str:
    """Return the differences as text for the terminal."""
    lines = [Line(text, "dim") for text in fold_command(visible(command), width)] if command else []
    title = visible(f"{differences.old} → {differences.new}")
    lines += [Line(text, "bold") for text in fold_words(title, width)]
    lines += [Line(text) for words in _summary(differences) for text in fold_words(visible(words), width)]
    parts = [drawn(lines, color)]
    for file in _differing(differences):
        heading = [Line(text, "bold cyan") for text in fold_words(visible(file.name), width)]
        parts.append(drawn(heading, color) + diff_table.table(view(file.difference), width, color))
    return "\n".join(parts)


def _differing(differences: Differences) -> list[FileDifference]:
    return [file for file in differences.files if file.difference]


def _summary(differences: Differences) -> list[str]:
    differing = _differing(differences)
    same = [file.name for file in differences.files if not file.difference]
    verb = "differs" if 1 in (len(differing), len(differences.files)) else "differ"
    lines = [f"{len(differing):,} of {count(len(differences.files), 'file')} {verb}"]
    lines += [f"no difference: {', '.join(same)}"] if same else []
    for side, names in ((differences.old, differences.only_old), (differences.new, differences.only_new)):
        lines += [f"only in {side}: {', '.join(names)}"] if names else []
    return [*lines, *(f"not compared: {one.name}: {one.reason}" for one in differences.not_compared)]
