"""Claims: what the user says that the code is meant to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from attnshape.dims.expressions import (
    AxisExpression,
    Expression,
    PairCondition,
    RealExpression,
    parse_pair_condition,
    parse_scale,
    parse_size_expression,
)
from attnshape.dims.symbols import require_known
from attnshape.errors import AttnshapeError, Option, did_you_mean, most_similar
from attnshape.options.claimed_axes import ClaimedAxis, parse_claimed_axes, require_shape

Meaning = Literal["keep", "drop", "add", "dropout", "bias", "relative-bias", "length", "last-token"]
"""What a tensor argument is: a mask whose True keeps or drops a key, a mask that is added to the scores, a dropout
pattern drawn beforehand, a bias of the scores, a bias that depends on the distance only, the number of tokens of each
batch element, or the index of its last one."""
Rope = Literal["half", "interleaved"]

_SWITCHES = (
    "causal",
    "alibi",
    "tiled-heads",
    "shared-projection",
    "shared-layers",
    "separate-values",
    "zero-masked-rows",
    "seq-first",
)
_FORMS = (
    "causal, window=W, visible=CONDITION, NAME=keep, NAME=drop, NAME=add, NAME=dropout, NAME=bias, NAME=relative-bias, "
    "NAME=length, NAME=last-token, alibi, rope=half, rope=interleaved, tiled-heads, shared-projection, shared-layers, "
    "separate-values, zero-masked-rows, scale=EXPR, seq-first"
)


@dataclass(frozen=True)
class Claims:
    """What the user claims; a field with its default claims nothing."""

    texts: tuple[str, ...] = ()
    causal: bool = False
    window: AxisExpression | None = None
    visible: PairCondition | None = None
    """Which key position a query position sees."""
    arguments: Mapping[str, Meaning] = field(default_factory=dict)
    axes: Mapping[str, tuple[ClaimedAxis, ...]] = field(default_factory=dict)
    """The axes of masks and biases, where they are written behind the meaning."""
    alibi: bool = False
    rope: Rope | None = None
    tiled_heads: bool = False
    """Whether query head h uses key and value head h % Hkv."""
    shared_projection: bool = False
    """Whether the features of every head are projected by the same parameter."""
    shared_layers: bool = False
    """Whether one module is several layers of a model."""
    separate_values: bool = False
    """Whether keys and values come from different inputs."""
    zero_masked_rows: bool = False
    scale: RealExpression | None = None
    """Over the sizes, and the width Dk of one head, which every attention has."""
    seq_first: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each claim: of an argument, or the word before the equals sign.

        >>> parse_claims(["causal", "bias=bias", "scale=1/sqrt(Dk)"]).names
        ('causal', 'bias', 'scale')
        """
        return tuple(text.partition("=")[0].strip() for text in self.texts)

    @property
    def masks(self) -> tuple[str, ...]:
        """The names of the arguments that are masks."""
        return tuple(name for name, meaning in self.arguments.items() if meaning in ("keep", "drop", "add"))

    @property
    def positional(self) -> bool:
        """Whether the user claims that something that depends on positions is added to the scores."""
        return self.alibi or any(meaning in ("bias", "relative-bias") for meaning in self.arguments.values())

    def window_at(self, sizes: Mapping[str, int]) -> int | None:
        """Return the claimed window at these sizes. Raises AttnshapeError if it has no value above 0."""
        return _above_zero(self.window.evaluate(sizes)) if self.window is not None else None

    def scale_at(self, sizes: Mapping[str, int]) -> float | None:
        """Return the claimed scale at these sizes. Raises AttnshapeError if it has no value above 0."""
        return _above_zero(self.scale.evaluate(sizes)) if self.scale is not None else None

    def visible_at(self, sizes: Mapping[str, int], query: int = 0, key: int = 0) -> bool | None:
        """Return whether a query is claimed to see a key at these sizes, None if nothing is claimed about that.

        Raises AttnshapeError if the claim can't be evaluated.
        """
        return self.visible.holds(sizes, query, key) if self.visible is not None else None

    def idle_at(self, sizes: Mapping[str, int], queries: int, keys: int) -> int:
        """Return how many comparisons of `visible`, or whether `window`, tell no pairs apart at these sizes.

        Raises AttnshapeError if the window has no value above 0.
        """
        if self.visible is not None:
            return self.visible.idle_at(sizes, queries, keys)
        width = self.window_at(sizes)
        return int(width is not None and width >= max(queries, keys))

    def require_known(self, symbols: Collection[str]) -> None:
        """Raise AttnshapeError if a claim has a symbol that isn't among these."""
        for named, expression, _ in self._expressions():
            require_known(expression.symbols, symbols, named)
        texts = dict(zip(self.names, self.texts, strict=True))
        for name, axes in self.axes.items():
            written = [symbol for axis in axes for factor in axis.factors for symbol in factor.symbols]
            require_known(written, symbols, Option("claims", texts[name]))

    def require_values(self, sizes: Mapping[str, int]) -> None:
        """Raise AttnshapeError if a claim has no value for a target with these sizes: it needs another, is 0, …"""
        for named, expression, value_at in self._expressions():
            # every attention has a width of one head, whether or not it is a size of the target
            widths = {HEAD_WIDTH} - sizes.keys() if expression is self.scale else set()
            missing = next((name for name in expression.symbols if name not in {*sizes, *widths}), None)
            if missing is not None:
                numbers = {"scale": "scale=0.125", "window": "window=4", "visible": "visible=k < 4"}
                example = Option("claims", numbers[str(named.value).partition("=")[0]])
                raise AttnshapeError(
                    (named, f": the target has no size {missing}"),
                    (did_you_mean(missing, sizes, "its sizes are"), " (or claim a number: ", example, ")"),
                )
            if widths.isdisjoint(expression.symbols):
                _require_value(named, value_at, sizes)

    def require_shapes(self, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> None:
        """Raise AttnshapeError if an argument doesn't have the axes that are claimed; `shapes` are at these sizes."""
        texts = dict(zip(self.names, self.texts, strict=True))
        for name, axes in self.axes.items():
            if name in shapes:
                try:
                    require_shape(axes, shapes[name], sizes)
                except AttnshapeError as error:
                    raise error.prefixed(Option("claims", texts[name]), f": {name} ") from None

    def about(self, known: Sequence[str], masks: Sequence[str]) -> Claims:
        """Return the claims with the name of the target's only mask for `mask`, if it has another name.

        `known` are the names of the target's arguments, and `masks` those of its masks.

        Raises AttnshapeError if a claim names no argument of the target.
        """
        claims = self
        if "mask" in self.arguments and "mask" not in known and len(masks) == 1:
            texts = dict(zip(self.names, self.texts, strict=True))
            meaning = texts["mask"].partition("=")[2].strip()
            claims = parse_claims((texts | {"mask": f"{masks[0]}={meaning}"}).values())
        for name, is_a in claims.arguments.items():
            if name not in known:
                hint = did_you_mean(name, known, "its arguments are")
                raise AttnshapeError((Option("claims", f"{name}={is_a}"), f": the target has no argument {name}"), hint)
        return claims

    def require_constants(self) -> None:
        """Raise AttnshapeError if a claim without symbols has no value."""
        for named, expression, value_at in self._expressions():
            if not expression.symbols:
                _require_value(named, value_at, {})

    def _expressions(self) -> Iterator[tuple[Option, Expression, Callable[[Mapping[str, int]], object]]]:
        if self.window is not None:
            yield Option("claims", f"window={self.window.text}"), self.window, self.window_at
        if self.visible is not None:
            yield Option("claims", f"visible={self.visible.text}"), self.visible, self.visible_at
        if self.scale is not None:
            yield Option("claims", f"scale={self.scale.text}"), self.scale, self.scale_at


HEAD_WIDTH = "Dk"
_Number = TypeVar("_Number", int, float)


def _above_zero(number: _Number) -> _Number:
    if number <= 0:
        raise AttnshapeError(f"the claimed value {number:.6g} isn't above 0", "claim another value, or other sizes")
    return number


def _require_value(named: Option, value_at: Callable[[Mapping[str, int]], object], sizes: Mapping[str, int]) -> None:
    try:
        value_at(sizes)
    except AttnshapeError as error:
        raise error.prefixed(named, ": ") from None


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
    values: dict[str, Any] = {"arguments": {}, "axes": {}}
    kept = _latest(texts)
    for text in kept:
        name, equals, value = (part.strip() for part in text.partition("="))
        named = Option("claims"), f" {text[:60]!r}"
        if not equals:
            if name not in _SWITCHES:
                known = [*_SWITCHES, "window=W", "visible=k <= q", "rope=half", "rope=interleaved", "scale=1/sqrt(Dk)"]
                similar = most_similar(name, known)
                hint = f"did you mean {similar}?" if similar is not None else f"the claims are {_FORMS}"
                raise AttnshapeError((*named, " isn't a claim"), hint)
            values[name.replace("-", "_")] = True
        elif name == "window":
            values["window"] = _parsed(value, parse_size_expression)
        elif name == "visible" and value not in get_args(Meaning):
            values["visible"] = _parsed(value, parse_pair_condition)
        elif name == "rope":
            if value not in get_args(Rope):
                raise AttnshapeError((*named, ": there are two layouts"), "rope=half or rope=interleaved")
            values["rope"] = value
        elif name == "scale":
            if not value:
                raise AttnshapeError((*named, " has no number"), ("for example ", Option("claims", "scale=1/sqrt(Dk)")))
            values["scale"] = _parsed(value, parse_scale)
        elif value.partition(":")[0].strip() in get_args(Meaning):
            meaning, colon, axes = (part.strip() for part in value.partition(":"))
            values["arguments"][name] = meaning
            if colon:
                values["axes"][name] = _parsed(axes, parse_claimed_axes)
        else:
            raise AttnshapeError(
                (*named, f": {value[:40]!r} isn't what an argument can be"),
                did_you_mean(value, list(get_args(Meaning)), "it can be"),
            )
    claims = Claims(texts=kept, **values)
    claims.require_constants()
    return claims


def _latest(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the claims, of several about the same thing the last one; a key is visible if all conditions hold.

    >>> _latest(["rope=half", "visible=k <= q", "rope=interleaved", "visible=q - k < W or k < 2"])
    ('rope=interleaved', 'visible=(k <= q) and (q - k < W or k < 2)')
    """
    kept: dict[str, str] = {}
    conditions: dict[str, None] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        kept[name] = text.strip()
        if name == "visible" and value not in get_args(Meaning):
            conditions[value] = None
    if len(conditions) > 1:
        kept["visible"] = f"visible={' and '.join(f'({condition})' for condition in conditions)}"
    return tuple(kept.values())


_Parsed = TypeVar("_Parsed")


def _parsed(value: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    try:
        return parse(value)
    except AttnshapeError as error:
        raise error.prefixed(Option("claims"), ": ") from None


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
