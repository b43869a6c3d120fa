"""What the user says that the code is meant to do: `--claim`, or a case's fourth value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from attnshape import axis
from attnshape.axis import AxisExpression
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest

Meaning = Literal["keep", "drop", "add", "dropout", "bias", "relative-bias"]
"""What a tensor argument is: a mask whose True keeps or drops a key, numbers that are added to the scores as a mask, a
dropout pattern drawn beforehand, a bias of the scores, or a bias that depends on the distance only."""
Rope = Literal["half", "interleaved"]

_SWITCHES = ("causal", "alibi", "zero-masked-rows", "seq-first")
_FORMS = (
    "causal, window=W, NAME=keep, NAME=drop, NAME=add, NAME=dropout, NAME=bias, NAME=relative-bias, alibi, rope=half, "
    "rope=interleaved, zero-masked-rows, scale=EXPR, seq-first"
)


@dataclass(frozen=True)
class Claims:
    """What is claimed; nothing where a field has its default."""

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
        """Whether the scores are claimed to have something added that depends on positions."""
        return self.alibi or any(meaning in ("bias", "relative-bias") for meaning in self.arguments.values())


def parse_claims(texts: Iterable[str]) -> Claims:
    """Return the claims as typed. Raises AttnshapeError where one can't be.

    >>> parse_claims(["causal", "mask=keep", "window=W"]).arguments
    {'mask': 'keep'}
    >>> parse_claims(["casual"])
    Traceback (most recent call last):
        ...
    attnshape.errors.AttnshapeError: --claim 'casual' isn't a claim
    hint: did you mean causal?
    """
    values: dict[str, Any] = {"arguments": {}}
    # of two claims about one thing the last one counts
    kept = tuple({text.partition("=")[0].strip(): text.strip() for text in texts}.values())
    for text in kept:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            if name not in _SWITCHES:
                raise AttnshapeError(f"--claim {text[:60]!r} isn't a claim", _meant(name))
            values[name.replace("-", "_")] = True
        elif name == "window":
            values["window"] = axis.parse(value)
        elif name == "rope":
            if value not in get_args(Rope):
                raise AttnshapeError(
                    f"--claim rope={value[:40]!r}: there are two layouts", "rope=half or rope=interleaved"
                )
            values["rope"] = value
        elif name == "scale":
            if not value:
                raise AttnshapeError("--claim scale= says no number", "for example --claim scale=1/sqrt(Dk)")
            values["scale"] = value
        elif value in get_args(Meaning):
            values["arguments"][name] = value
        else:
            raise AttnshapeError(
                f"--claim {text[:60]!r}: {value[:40]!r} isn't what an argument can be",
                nearest(value, list(get_args(Meaning)), "it can be"),
            )
    return Claims(texts=kept, **values)


def claimed_by_case(value: Any, label: str) -> tuple[str, ...]:
    """Return the claims that a case returned as its fourth value: texts, one text, or a mapping of names to values.

    Raises AttnshapeError where it is something else.

    >>> claimed_by_case({"causal": True, "mask": "keep"}, "case")
    ('causal', 'mask=keep')
    """
    match value:
        case None:
            return ()
        case str():
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case Mapping():
            return tuple(str(k) if v is True else f"{k}={v}" for k, v in value.items() if v is not False)
        case Sequence() | set() | frozenset() if all(isinstance(one, str) for one in value):
            return tuple(value)
    raise AttnshapeError(
        f"{label} returned {type(value).__name__} as its fourth value, expected its claims",
        'return a list of texts there, for example ["causal", "mask=keep"]',
    )


def _meant(name: str) -> str:
    known = [*_SWITCHES, "window=W", "rope=half", "rope=interleaved", "scale=1/sqrt(Dk)"]
    hint = nearest(name, known, "the claims are")
    return hint if hint.startswith("did you mean") else f"the claims are {_FORMS}"
