"""HTML of texts: every text is escaped, and nothing in it is markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from html import escape

from attnshape.dims.symbols import SYMBOLS
from attnshape.reporters.escaping import visible
from attnshape.reporters.trace_view import FooterLine, Header, MarkedTensor

_OPTION = re.compile(r"(?<!\S)--[\w-]+")
_NAME = re.compile(r"[^\W\d]\w*")
_FUNCTIONS = frozenset(("sqrt", "min", "max"))
"""The functions in formulas."""
_IN_PROSE = re.compile(r"\b[^\W\d]\w*(?==\d)|(?<= = )\S+")
"""The symbol of a size, such as `B=2`, and a formula after its value."""
COLORS = 24
"""How many colours the style has for size symbols."""


def escaped(text: str) -> str:
    """Return text as HTML.

    >>> escaped('<i> & "x"')
    '&lt;i&gt; &amp; &quot;x&quot;'
    """
    return escape(visible(text), quote=True)


def code(text: str) -> str:
    """Return text as code.

    >>> code("x @ y")
    '<code>x @ y</code>'
    """
    return f"<code>{escaped(text)}</code>" if text else ""


def prose(text: str, html: Callable[[str], str] = escaped, coded: Callable[[str], str] = code) -> str:
    """Return text in which what stands between backticks is code; `html` returns the HTML of the other parts.

    >>> prose("last of `q` is H*Dk")
    'last of <code>q</code> is H*Dk'
    """
    parts = re.split(r"`([^`\s][^`]*)`", visible(text))
    return "".join(coded(part) if place % 2 else html(part) for place, part in enumerate(parts))


def colors_of(symbols: Iterable[str]) -> dict[str, int]:
    """Return the number of each symbol's colour: general ones have the same on all pages, others follow in order.

    >>> colors = colors_of(["nh", "B", "C"])
    >>> colors["B"], colors["nh"] - colors["C"]
    (0, 1)
    """
    general = [symbol.name for symbol in SYMBOLS if symbol.is_general]
    return {symbol: place for place, symbol in enumerate(dict.fromkeys([*general, *sorted(symbols)]))}


class SymbolColors:
    """The colours of size symbols in HTML."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self._symbols = frozenset(symbols)
        self._places = colors_of(self._symbols)

    def formula(self, text: str) -> str:
        """Return a formula or a signature as code, with its symbols in their colours.

        >>> SymbolColors(["H"]).formula("H*2")
        '<code><span class="symbol s1">H</span>*2</code>'
        """
        return f"<code>{self._colored(visible(text))}</code>" if text else ""

    def prose(self, text: str) -> str:
        """Return text as `prose` does, with the symbols of its sizes and formulas in their colours.

        >>> SymbolColors(["H", "M"]).prose("at H=2: 8 M = 4*M")
        'at <span class="symbol s1">H</span>=2: 8 M = 4*<span class="symbol s12">M</span>'
        """
        return prose(text, self._around_code)

    def article(self, text: str) -> str:
        """Return text as `prose` does, with the symbols of formulas and signatures between backticks coloured too.

        >>> SymbolColors(["H"]).article("`2*H` of `f(H)`")
        '<code>2*<span class="symbol s1">H</span></code> of <code>f(H)</code>'
        """
        return prose(text, self._around_code, self._formula_or_code)

    def _around_code(self, text: str) -> str:
        return _with_matches(_IN_PROSE, text, self._colored)

    def _formula_or_code(self, text: str) -> str:
        return self.formula(text) if {*_NAME.findall(text)} <= self._symbols | _FUNCTIONS else code(text)

    def _colored(self, text: str) -> str:
        return _with_matches(_NAME, text, self._symbol)

    def _symbol(self, name: str) -> str:
        place = self._places.get(name)
        return escape(name) if place is None else f'<span class="symbol s{place % COLORS}">{escape(name)}</span>'


def _with_matches(pattern: re.Pattern[str], text: str, html: Callable[[str], str]) -> str:
    """Return text as HTML, each match as the HTML that `html` returns."""
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts += [escape(text[end : match.start()]), html(match[0])]
        end = match.end()
    return f"{''.join(parts)}{escape(text[end:])}"


def page_header(kind: str, header: Header, colors: SymbolColors | None = None) -> str:
    """Return the header of a page: what it shows, the target, details of the run, and the command."""
    details = " · ".join(map(colors.prose if colors is not None else escaped, header.details))
    lines = [f'<p class="kind">attnshape {kind}</p>', f"<h1>{escaped(header.target)}</h1>"]
    lines += [f'<p class="run">{details}</p>'] if details else []
    lines += [f'<p class="command"><code>{_command(header.command)}</code></p>'] if header.command else []
    return "\n".join(['<header class="page-header">', *lines, "</header>"])


def _command(text: str) -> str:
    """Return a command line in which no line break separates the hyphens of an option from its name.

    >>> _command("attnshape trace a-b.py --init D")
    'attnshape trace a-b.py <span class="option">--init</span> D'
    """
    return _with_matches(_OPTION, visible(text), lambda option: f'<span class="option">{escape(option)}</span>')


def items(lines: Collection[str]) -> str:
    """Return a list of lines that are HTML; nothing if there are none."""
    return f'<ul class="lines">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def footer_lines(lines: Iterable[FooterLine], colors: SymbolColors) -> Iterator[str]:
    """Yield the lines below a table as HTML."""
    for line in lines:
        flags = f" {code(line.flags)}" if line.flags else ""
        tensors = "".join(f"<li>{_tensor(one)}</li>" for one in line.tensors)
        inner = f'<ul class="tensors">{tensors}</ul>' if tensors else ""
        text = f"{colors.prose(line.text)}{flags}{inner}"
        yield text if line.tone == "plain" else f'<span class="{line.tone}">{text}</span>'


def _tensor(one: MarkedTensor) -> str:
    signature, shape = (
        " ".join(
            f"<strong>{escaped(word)}</strong>" if place in one.marks else escaped(word)
            for place, word in enumerate(words)
        )
        for words in (one.signature, one.shape)
    )
    return f"{code(one.name)} {signature} ({shape or 'scalar'})"
