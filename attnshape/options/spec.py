"""The options of a run, built by the command line, the Python API and pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, field

from attnshape.dims.expressions import parse_axes, parse_tensor
from attnshape.dims.sizes import check_sizes, parse_size
from attnshape.dims.symbols import SYMBOLS_BY_NAME, require_known, size_option
from attnshape.errors import AttnshapeError, Option, Text, did_you_mean
from attnshape.options.claims import parse_claims

DeviceName = Annotated[str, Meta(pattern=r"^(cpu|meta|cuda(:\d+)?)\Z")]
DtypeName = Literal["float32", "float64", "float16", "bfloat16"]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
MaskValue = Annotated[float, Meta(lt=0)]
Probability = Annotated[float, Meta(ge=0, lt=1)]
DTYPES: tuple[str, ...] = get_args(DtypeName)
_DTYPE_ALIASES = {
    **dict.fromkeys(("half", "fp16"), "float16"),
    **dict.fromkeys(("float", "single", "fp32"), "float32"),
    **dict.fromkeys(("double", "fp64"), "float64"),
    "bf16": "bfloat16",
}
"""Aliases of dtypes, for hints."""


class MechanismOptions(TypedDict, total=False):
    """Options of built-in mechanisms only."""

    causal: bool
    padding: bool
    mask_value: MaskValue
    dropout: Probability
    bias: bool


EXPECTED: dict[str, tuple[str, object]] = {
    "device": ("cpu, cuda, cuda:0, … or meta", "cuda"),
    "dtype": (", ".join(DTYPES), "float64"),
    "seed": ("a whole number from 0 up", 1),
    "train": ("true or false", True),
    "grad": ("true or false", True),
    "causal": ("True or False", True),
    "padding": ("True or False", True),
    "bias": ("True or False", False),
    "mask_value": ("a negative number", -10000.0),
    "dropout": ("a probability from 0 up to 1", 0.1),
}
"""The valid values of each field that msgspec validates, and an example."""


class TargetSpec(Struct, frozen=True):
    """The user's description of a target, its sizes and its inputs.

    Raises AttnshapeError on construction if a size or an option is invalid, or a parameter is given twice.
    """

    target: str = ""
    """A mechanism, `file.py:Name`, `package.module:Name`, or a name from pyproject.toml; multi-head if empty."""
    init: str | None = None
    """The arguments of a class, as Python code that may use the sizes."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The description of each tensor argument, by parameter: `int[V] B L`."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Other arguments by parameter, as Python code that may use the sizes."""
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    """Sizes by symbol; those of the user's own dimensions may be expressions."""
    options: MechanismOptions = field(default_factory=lambda: MechanismOptions())
    expect: tuple[tuple[str, str], ...] = ()
    """Pairs of a variable, or `output`, and its expected signature; a variable may have several."""
    claims: tuple[str, ...] = ()
    """What the code is meant to do, for `check`."""
    callable: Any = None
    """The object to run, if it was passed from Python; `target` is then its name."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that are passed as they are, by parameter."""
    inside: str | None = None
    """The path of a module of the target, which is run instead with the arguments that it gets."""

    def __post_init__(self) -> None:
        check_sizes(self.sizes)
        decode_options(self.options)
        for name in self.inputs:
            if name in self.arguments or name in self.values:
                raise AttnshapeError(
                    (f"{name} is given twice, in ", Option("inputs"), " and in ", Option("arguments")), "give it once"
                )

    @property
    def vocabulary_symbols(self) -> tuple[str, ...]:
        """The user's own symbols that bound the integers of an input, as in `int[V] B L`, and aren't its axes."""
        tensors = [parse_tensor(name, text) for name, text in self.inputs.items()]
        axes = {symbol for tensor in tensors for axis in tensor.axes for symbol in axis.symbols}
        bounds = dict.fromkeys(symbol for tensor in tensors if tensor.below for symbol in tensor.below.symbols)
        return tuple(symbol for symbol in bounds if symbol not in axes | SYMBOLS_BY_NAME.keys())

    def require_known_symbols(self, more: Collection[str] = ()) -> None:
        """Raise AttnshapeError if an expression is invalid, or has a symbol that is unknown and not among `more`."""
        own = [name for name in self.sizes if name not in SYMBOLS_BY_NAME]
        known = [*dict.fromkeys([*SYMBOLS_BY_NAME, *own, *self.vocabulary_symbols, *more])]
        for name in own:
            require_known(parse_size(name, self.sizes[name]).symbols, known, size_option(name, self.sizes[name]))
        for name, text in self.inputs.items():
            require_known(parse_tensor(name, text).symbols, known, Option("inputs", text, name))
        for variable, signature in self.expect:
            option = Option("expect", signature, variable)
            for axis in parse_axes(signature, option):
                require_known(axis.symbols, known, option)
        parse_claims(self.claims).require_known(known)

    def merged_onto(self, base: TargetSpec) -> TargetSpec:
        """Return the base with its fields replaced by those given here; sizes and options are merged."""
        own = {*self.arguments, *self.values}
        return TargetSpec(
            target=base.target,
            init=self.init if self.init is not None else base.init,
            inputs=self.inputs or {name: text for name, text in base.inputs.items() if name not in own},
            arguments=self.arguments or base.arguments,
            sizes={**self.sizes, **{name: size for name, size in base.sizes.items() if name not in self.sizes}},
            options={**base.options, **self.options},
            expect=self.expect or base.expect,
            claims=self.claims or base.claims,
            values=self.values,
            inside=self.inside if self.inside is not None else base.inside,
        )

    def given_options(self) -> Iterator[Option]:
        """Yield each option given, except the target."""
        if self.init is not None:
            yield Option("init", self.init)
        for name in ("inputs", "arguments", "sizes", "options"):
            for key, value in getattr(self, name).items():
                yield Option(name, value, key)
        if self.inside is not None:
            yield Option("inside", self.inside)
        for variable, signature in self.expect:
            yield Option("expect", signature, variable)
        for claim in self.claims:
            yield Option("claims", claim)


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How to run a target."""

    device: DeviceName = "cpu"
    dtype: DtypeName = "float32"
    seed: Seed = 0
    train: bool = False
    """Whether the target runs in training mode, with dropout."""
    grad: bool = False
    """Whether autograd keeps the tensors that gradients need."""
    cost: bool = False
    """Whether it is counted what each step computes, moves and saves."""
    chooses_device: bool = False
    """Whether the user named the device."""
    command: str = "attnshape trace"
    """The command line or Python call, as the user typed it."""


T = TypeVar("T")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,39})")


def require_name(target: str) -> str:
    """Return the name of a target unchanged. Raises AttnshapeError if it is empty."""
    if not target.strip():
        raise AttnshapeError(
            "the target's name is empty", "leave it out for multi-head, or name one: attnshape catalog"
        )
    return target


def run_options(values: Mapping[str, object], command: str) -> RunOptions:
    """Return run options, with defaults for missing values. Raises AttnshapeError if a value is invalid."""
    return _decode({**values, "chooses_device": "device" in values, "command": command}, RunOptions, Option)


def decode_options(values: Mapping[str, object]) -> MechanismOptions:
    """Return the options of a built-in mechanism. Raises AttnshapeError if one is unknown or its value is invalid."""
    known = list(MechanismOptions.__annotations__)
    for name in values:
        if name not in known:
            raise AttnshapeError(f"there is no option {name[:40]!r}", did_you_mean(name, known, "the options are"))
    return _decode(values, MechanismOptions, lambda name, value=None: Option("options", value, name))


def _decode(values: Mapping[str, object], kind: type[T], option: Any) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        expected, example = EXPECTED[name]
        hint: Text = ("for example ", option(name, example))
        if name == "device":
            hint = f"choose from: {expected}"
        if name == "dtype":
            hint = suggest_dtype(str(values[name]))
        raise AttnshapeError((option(name), f" is {repr(values[name])[:60]}, expected {expected}"), hint) from None


def suggest_dtype(name: str) -> str:
    """Return a hint for an unknown dtype.

    >>> suggest_dtype("torch.half")
    'did you mean float16?'
    """
    plain = name.removeprefix("torch.").lower()
    return did_you_mean(_DTYPE_ALIASES.get(plain, plain), DTYPES, "choose from")


def split_pairs(field_name: str, texts: Iterable[str], separator: str, form: str, example: Option) -> dict[str, str]:
    """Return `name: axes` or `NAME=PYTHON` texts as a mapping.

    Raises AttnshapeError if a text has another form, or a name occurs twice.
    """
    values: dict[str, str] = {}
    for name, value in _pairs(field_name, texts, separator, form, example):
        if name in values:
            raise AttnshapeError((Option(field_name), f" gives {name} twice"), "give it once")
        values[name] = value
    return values


def _pairs(
    field_name: str, texts: Iterable[str], separator: str, form: str, example: Option
) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, separated, value = (part.strip() for part in text.partition(separator))
        named = name.isidentifier() if separator == "=" else name.split() == [name]
        if not separated or not named or (separator == "=" and not value):
            raise AttnshapeError((Option(field_name), f" {text[:80]!r} isn't {form}"), ("for example ", example))
        yield name, " ".join(value.split()) if separator == ":" else value


def parse_inputs(texts: Iterable[str]) -> dict[str, str]:
    """Parse tensor descriptions, `query: B Lq D`, into a mapping by name.

    >>> parse_inputs(["ids: int[V] B L"])
    {'ids': 'int[V] B L'}
    """
    return split_pairs("inputs", texts, ":", "'name: axes'", Option("inputs", "B Lq D", "query"))


def parse_expect(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Parse names and their expected signatures, `scores: B H Lq Lk`; a name may occur several times.

    >>> parse_expect(["scores: B H Lq Lk", "output: B Lq D"])
    (('scores', 'B H Lq Lk'), ('output', 'B Lq D'))
    """
    return tuple(_pairs("expect", texts, ":", "'name: axes'", Option("expect", "B Lq D", "query")))


def parse_arguments(texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=PYTHON` texts into a mapping by name.

    >>> parse_arguments(["scale=H**-0.5"])
    {'scale': 'H**-0.5'}
    """
    example = Option("arguments", "torch.ones(L, L).tril().bool()", "mask")
    return split_pairs("arguments", texts, "=", "NAME=PYTHON", example)


def parse_dims(texts: Iterable[str]) -> dict[str, int | str]:
    """Parse the sizes of the user's own dimensions, `NAME=EXPR`: integers or expressions.

    >>> parse_dims(["nh=4", "C=nh*hs"])
    {'nh': 4, 'C': 'nh*hs'}
    """
    sizes = split_pairs("dim", texts, "=", "NAME=EXPR", Option("sizes", {"nh": 4, "hs": 16, "C": "nh*hs"}))
    dims: dict[str, int | str] = {name: int(text) if _INTEGER.fullmatch(text) else text for name, text in sizes.items()}
    check_dim_names(dims)
    return dims


def check_dim_names(dims: Mapping[str, int | str]) -> None:
    """Raise AttnshapeError if one of the user's own dimensions has the name of a general size symbol."""
    for name, size in dims.items():
        if name in SYMBOLS_BY_NAME and SYMBOLS_BY_NAME[name].is_general:
            raise AttnshapeError(
                (Option("dim"), f" {f'{name}={size}'!r}: {name} is {SYMBOLS_BY_NAME[name].meaning}"),
                ("give it as ", Option("sizes", size, name)),
            )


Existing = Literal["keep", "replace", "check"]
StyleName = Literal["jaxtyping", "comment"]


@dataclass(frozen=True)
class AnnotateOptions:
    """Which annotations to write, and in which style."""

    style: StyleName
    existing: Existing
    """What to do with signatures that are already in the source."""
    include_matched: bool
    """Whether to write axes that only match a size."""
    enforce: bool
    """Whether to write the decorators and the hook that check annotations as the code runs."""
