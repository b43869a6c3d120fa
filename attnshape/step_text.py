"""What a step is called: its source text on one line, and its operation's short name."""

from __future__ import annotations

import io
import re
import tokenize

_OPENING, _CLOSING = "([{", ")]}"


def unfolded(expression: str) -> str:
    r"""Return an expression's text on one line, without the comments and line breaks between its parts.

    >>> unfolded("x.view(\n    B,  # batch\n    L,\n)")
    'x.view(B, L)'
    """
    if "\n" not in expression:
        return expression.strip().replace("\t", " ")
    # In brackets a line break is no token that counts, whatever the indentation.
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({expression}\n)").readline))
    except (tokenize.TokenError, SyntaxError):
        return " ".join(expression.split())
    unseen = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)
    kept = [token for token in tokens if token.type not in unseen][1:-1]
    text = ""
    row, column = 1, 1
    calls: list[bool] = []
    for token in kept:
        if token.string in _OPENING:
            calls.append(token.string == "(" and re.search(r"[\w)\]]$", text) is not None)
        elif token.string in _CLOSING and calls and calls.pop():
            # A call's last comma only ever stands before a line break.
            text = text.removesuffix(",")
        if token.start[0] == row:
            text += " " * (token.start[1] - column)
        elif text[-1:] not in _OPENING and token.string[:1] not in (*_CLOSING, "."):
            text += " "
        text += token.string
        row, column = token.end
    return text.strip()


def without_self(text: str) -> str:
    """Return a step's text without `self.`.

    >>> without_self("self.Wq(x)")
    'Wq(x)'
    """
    return re.sub(r"(?<![\w.])self\.(?=\w)", "", text)


def operation(name: str) -> str:
    """Return an operation's short name.

    >>> [operation(f"torch.Tensor.{end}") for end in ("view", "__matmul__", "add_", "T.__get__")]
    ['view', 'matmul', 'add_', 'T']
    """
    short = name.removesuffix(".__get__").rpartition(".")[2]
    return short[2:-2] if short.startswith("__") and short.endswith("__") and len(short) > 4 else short
