"""The document around the content of a page: its style, its script, and a policy that forbids everything else.

Nothing is loaded from elsewhere. Should a text ever become markup, the policy keeps it from running: only the script
whose hash it names may run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from string import Template
from typing import Any

from attnshape.model.trace import json_text
from attnshape.reporters.web.markup import escaped

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    "formulas.js",
    "formats.js",
    "elements.js",
    "folded_flow.js",
    "flow_layout.js",
    "flow_picture.js",
    "memory_layout.js",
    "steps_table.js",
    "step_details.js",
    "size_controls.js",
    "trace_page.js",
    "results.js",
)
"""The parts of the script, each after those that it needs."""


def document(title: str, body: str, version: str = "") -> str:
    """Return a whole HTML document. The title is text, and the body is HTML."""
    footer = f'<footer class="page-footer">{escaped(f"attnshape {version}".rstrip())}</footer>'
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().substitute(
        title=escaped(title),
        style=_asset("page.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        body=f"{body}\n{footer}",
    )


def embedded_json(value: Any) -> str:
    r"""Return a script element that holds data. No text in it can end the element or begin a comment.

    >>> embedded_json(["</script>"])
    '<script type="application/json">["\\u003c/script>"]</script>'
    """
    text = json_text(value, indent=-1).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


@functools.cache
def _template() -> Template:
    return Template(_asset("page.html"))


@functools.cache
def _script() -> str:
    """Return the script with a line break before it, as it stands in the document."""
    parts = [_asset(name).replace('"use strict";\n\n', "") for name in _SCRIPTS]
    return '\n"use strict";\n\n' + "\n".join(parts)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
