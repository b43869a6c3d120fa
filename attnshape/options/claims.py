"""Claims: what the user says that the code is meant to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from attnshape.dims.expressions import AxisExpression, parse_expression
from attnshape.errors import AttnshapeError, Option, did_you_mean, most_similar

Meaning = Literal["keep", "drop", "add", "dropout", "bias", "relative-bias"]
"""What a tensor argument is: a mask whose True keeps or drops a key, a mask that is added to the scores, a dropout
pattern drawn beforehand, a bias of the scores, or a bias that depends on the distance only."""
Rope = Literal["half", "interleaved"]

_SWITCHES = ("causal", "alibi", "zero-masked-rows", "seq-first")
_FORMS = (
    "causal, window=W, NAME=keep, NAME=drop, NAME=add, NAME=dropout, NAME=bias, NAME=relative-bias, alibi, rope=half, "
    "rope=interleaved, zero-masked-rows, scale=EXPR, seq-first"
)


@dataclass(frozen=True)
class Claims:
    """What the user claims; a field with its default claims nothing."""

    texts: tuple[str, ...] = ()
    causal: bool = False
    window: AxisExpression | None = None
    arguments: Mapping[str, Meaning] = field(default_factory=dict)
    alibi: bool = False
    rope: Rope | None = None
    zero_masked_rows: bool = False
    scale: str | None = None
    """Python over the sizes, `1/sqrt(Dk)`."""
    seq_first: bool = False

    @property
    def positional(self) -> bool:
        """Whether the user claims that something that depends on positions is added to the scores."""
        return self.alibi or any(meaning in ("bias", "relative-bias") for meaning in self.arguments.values())


def parse_claims(texts: Iterable[str]) -> Claims:
    """Parse claims. Raises AttnshapeError if one is invalid.

    >>> parse_claims(["causal", "mask=keep", "window=W"]).arguments
    {'mask': 'keep'}
    >>> parse_claims(["casual"])
    Traceback (most recent call last):
        ...
    attnshape.errors.AttnshapeError: claims 'casual' isn't a claim
    hint: did you mean causal?
    """
    values: dict[str, Any] = {"arguments": {}}
    # the last of two claims about the same thing counts
    kept = tuple({text.partition("=")[0].strip(): text.strip() for text in texts}.values())
    for text in kept:
        name, equals, value = (part.strip() for part in text.partition("="))
        named = Option("claims"), f" {text[:60]!r}"
        if not equals:
            if name not in _SWITCHES:
                known = [*_SWITCHES, "window=W", "rope=half", "rope=interleaved", "scale=1/sqrt(Dk)"]
                similar = most_similar(name, known)
                hint = f"did you mean {similar}?" if similar is not None else f"the claims are {_FORMS}"
                raise AttnshapeError((*named, " isn't a claim"), hint)
            values[name.replace("-", "_")] = True
        elif name == "window":
            values["window"] = parse_expression(value)
        elif name == "rope":
            if value not in get_args(Rope):
                raise AttnshapeError((*named, ": there are two layouts"), "rope=half or rope=interleaved")
            values["rope"] = value
        elif name == "scale":
            if not value:
                raise AttnshapeError((*named, " has no number"), ("for example ", Option("claims", "scale=1/sqrt(Dk)")))
            values["scale"] = value
        elif value in get_args(Meaning):
            values["arguments"][name] = value
        else:
            raise AttnshapeError(
                (*named, f": {value[:40]!r} isn't what an argument can be"),
                did_you_mean(value, list(get_args(Meaning)), "it can be"),
            )
    return Claims(texts=kept, **values)


def claim_texts(value: Any, source: str) -> tuple[str, ...]:
    """Return claims as texts: given as texts, as one text, or as a mapping of names to values.

    Raises AttnshapeError, which names the source of the claims, if the value is something else.

    >>> claim_texts({"causal": True, "mask": "keep"}, "case")
    ('causal', 'mask=keep')
    """
    match value:
        case None:
            return ()
        case str():
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case Mapping():
            return tuple(str(k) if v is True else f"{k}={v}" for k, v in value.items() if v is not False)
        case Sequence() | set() | frozenset() if all(isinstance(text, str) for text in value):
            return tuple(value)
    raise AttnshapeError(
        f"{source} returned {type(value).__name__} as its fourth value, expected its claims",
        'return a list of texts there, for example ["causal", "mask=keep"]',
    )
