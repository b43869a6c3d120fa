"""A flow chart of a trace in Mermaid, which GitHub renders in comments and Markdown files."""

from __future__ import annotations

import re

from attnshape.model.trace import Trace
from attnshape.reporters.escaping import visible
from attnshape.reporters.flow import Flow, FlowNode, flow_of
from attnshape.reporters.reporter import Reporter

MOST_CHARACTERS = 5000
"""How long a chart may be; longer ones get fewer nodes. GitHub doesn't render charts of more than 50,000."""
_MOST_NODES = 60
_PLAIN = re.compile(r"[^A-Za-z0-9 _.,+=/()×·…-]")
_READ_AS_MARKUP = re.compile(r"(?<=\\)(?=n)|(?<=\$)(?=\$)|(?<=:)(?=fa-)")
"""Between what Mermaid still reads as a new line, as a formula, and as an icon when it has decoded the entities."""
_SHAPES = {"input": ("([", "])"), "output": ("([", "])"), "softmax": ("{{", "}}"), "product": ("[[", "]]")}


def trace_mermaid(trace: Trace) -> str:
    """Return the flow chart of a trace, without the fence around it.

    >>> import attnshape
    >>> print(trace_mermaid(attnshape.trace("scaled-dot-product")).splitlines()[0])
    flowchart TD
    """
    most = _MOST_NODES
    chart = _chart(flow_of(trace, most))
    while len(chart) > MOST_CHARACTERS and most > 2:
        most = most * 2 // 3
        chart = _chart(flow_of(trace, most))
    return chart


def picture(trace: Trace) -> str:
    """Return the flow chart of a trace as Markdown that is folded until a reader opens it."""
    return f"<details><summary>data flow</summary>\n\n```mermaid\n{trace_mermaid(trace)}```\n\n</details>\n"


def _chart(flow: Flow) -> str:
    lines = ["flowchart TD"]
    for place, node in enumerate(flow.nodes):
        opening, closing = _SHAPES.get(node.kind, ("[", "]"))
        lines.append(f'  n{place}{opening}"{_label(node)}"{closing}')
    for edge in flow.edges:
        text = _escaped(edge.signature or "scalar")
        lines.append(f'  n{edge.source} -- "{text}" --> n{edge.target}')
    return "\n".join(lines) + "\n"


def _label(node: FlowNode) -> str:
    title = _escaped(f"{node.times} {node.title}".strip())
    return f"{title}<br>{_escaped(node.does)}" if node.does else title


def _escaped(text: str) -> str:
    """Return text for a label in quotes: whatever could be markup is a numeric entity, as Mermaid writes them.

    What it would read as markup all the same is parted by a place where a line may break.

    >>> _escaped('a"b <i>`c` H*Dk')
    'a#34;b #60;i#62;#96;c#96; H#42;Dk'
    """
    parts = _READ_AS_MARKUP.split(visible(text))
    return "<wbr>".join(_PLAIN.sub(lambda match: f"#{ord(match[0])};", part) for part in parts)


REPORTER = Reporter("mermaid", trace=lambda trace, options, screen: trace_mermaid(trace))
