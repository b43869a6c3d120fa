"""Targets as flags and tables of the project's pyproject.toml declare them.

`[tool.attnshape.targets.NAME]` declares a target, and `[tool.attnshape.defaults]` what all of them share.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from attnshape.dims.sizes import LARGEST, evaluate_sizes, parse_size
from attnshape.dims.symbols import ORDER, SIZE_KEYS, SYMBOLS_BY_NAME
from attnshape.errors import LISTS, AttnshapeError, Option, did_you_mean, literal
from attnshape.options.claims import claim_texts, parse_claims
from attnshape.options.spec import (
    EXPECTED,
    DeviceName,
    DtypeName,
    MaskValue,
    Probability,
    RunOptions,
    Seed,
    TargetSpec,
    check_dim_names,
    parse_arguments,
    parse_dims,
    parse_expect,
    parse_inputs,
    run_options,
)

FILE = "pyproject.toml"
SizeSet = Mapping[str, int]
"""Numbers by symbol, in canonical order."""

_Size = Annotated[int, Meta(ge=1, le=LARGEST)]
_Texts = Annotated[list[str], Meta(min_length=1)]
_Named = dict[str, str] | _Texts | str
_PLURALS = {"input": "inputs", "claim": "claims"}
_RUN = ("device", "dtype", "seed", "train", "grad")
_EXAMPLE = (
    'write for example [tool.attnshape.targets.attention], and below it target = "model.py:Attention", init = "D, H" '
    'and inputs = ["x: B L D"]'
)


class ProjectTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A target as flags or pyproject.toml declare it; `decode_target` validates the latter."""

    target: Annotated[str, Meta(pattern=r"\S")]
    init: str | None = None
    inputs: _Named = {}
    arguments: dict[str, str | int | float | bool] | _Texts | str = msgspec.field(name="with", default_factory=dict)
    inside: Annotated[str, Meta(pattern=r"\S")] | None = None
    sizes: dict[str, int | str] | Annotated[list[dict[str, int | str]], Meta(min_length=1)] | None = None
    claims: dict[str, str | int | float | bool] | _Texts | str = {}
    expect: _Named = {}
    dim: dict[str, int | str] | _Texts | str = {}
    batch: _Size | None = None
    heads: _Size | None = None
    kv_heads: _Size | None = None
    group: _Size | None = None
    past: _Size | None = None
    length: _Size | None = None
    queries: _Size | None = None
    keys: _Size | None = None
    d_model: _Size | None = None
    d_head: _Size | None = None
    d_value: _Size | None = None
    window: _Size | None = None
    window_rows: _Size | None = None
    window_columns: _Size | None = None
    latents: _Size | None = None
    selected: _Size | None = None
    index_heads: _Size | None = None
    d_index: _Size | None = None
    d_in: _Size | None = None
    d_out: _Size | None = None
    d_rope: _Size | None = None
    kv_rank: _Size | None = None
    query_rank: _Size | None = None
    packed: _Size | None = None
    buckets: _Size | None = None
    causal: bool = False
    padding: bool = False
    mask_value: MaskValue | None = None
    dropout: Probability | None = None
    no_bias: bool = False
    device: DeviceName | None = None
    dtype: DtypeName | None = None
    seed: Seed | None = None
    train: bool = False
    grad: bool = False

    def run(self) -> dict[str, object]:
        """Return the run options that are given."""
        return self._given(*_RUN)

    def spec(self) -> TargetSpec:
        """Return the target without its sets of sizes. Raises AttnshapeError if it is invalid."""
        claims = claim_texts(self.claims, "claims")
        parse_claims(claims)
        options: Any = self._given("causal", "padding", "mask_value", "dropout")
        return TargetSpec(
            self.target,
            self.init,
            inputs=_mapping(self.inputs, parse_inputs),
            arguments={name: str(value) for name, value in _mapping(self.arguments, parse_arguments).items()},
            sizes={**self._symbols(), **self._dims()},
            options=options | ({"bias": False} if self.no_bias else {}),
            expect=tuple(self.expect.items()) if isinstance(self.expect, dict) else parse_expect(_listed(self.expect)),
            claims=claims,
            inside=self.inside,
        )

    def sets(self) -> tuple[SizeSet, ...]:
        """Return the sets of sizes that are listed. Raises AttnshapeError if one is invalid."""
        if self.sizes is None:
            return ()
        tables = [self.sizes] if isinstance(self.sizes, dict) else self.sizes
        sets: list[SizeSet] = []
        for number, table in enumerate(tables, 1):
            where = f"the key sizes, set {number}: " if len(tables) > 1 else "the key sizes: "
            try:
                sizes = self._evaluated(table)
            except AttnshapeError as error:
                raise error.written_in(_assignment, where) from None
            if sizes in sets:
                listed = " ".join(f"{name}={size}" for name, size in sizes.items())
                raise AttnshapeError(f"the key sizes has the set {listed} twice", "list each set once")
            sets.append(sizes)
        return tuple(sets)

    def over(self, typed: TargetSpec) -> Iterator[tuple[SizeSet, TargetSpec]]:
        """Yield for each set of sizes what is left of it, and the target with what is typed laid over both.

        A size that is typed takes the place of that symbol in every set; sets that are then the same are one.
        """
        base, yielded = self.spec(), []
        for listed in self.sets() or ({},):
            sizes = {**listed, **{name: size for name, size in base.sizes.items() if name not in listed}}
            spec = typed.merged_onto(msgspec.structs.replace(base, sizes=sizes))
            if spec not in yielded:
                yielded.append(spec)
                yield {name: size for name, size in listed.items() if name not in typed.sizes}, spec

    def _given(self, *fields: str) -> dict[str, Any]:
        values = {field: getattr(self, field) for field in fields}
        return {field: value for field, value in values.items() if value is not None and value is not False}

    def _symbols(self) -> dict[str, int]:
        return {SIZE_KEYS[key]: size for key, size in self._given(*SIZE_KEYS).items()}

    def _dims(self) -> dict[str, int | str]:
        dims = _mapping(self.dim, parse_dims)
        check_dim_names(dims)
        return dims

    def _evaluated(self, table: Mapping[str, int | str]) -> SizeSet:
        """Return a set with a number for each symbol: expressions may use the set and the target's other sizes."""
        if not table:
            raise AttnshapeError("no sizes", f"list some, {_SETS}")
        symbols, dims = self._symbols(), self._dims()
        for name in table:
            _refuse_unknown(name, symbols, dims)
        others = {**symbols, **dims}
        numbers = evaluate_sizes(
            {name: parse_size(name, size) for name, size in table.items()},
            {name: size for name, size in others.items() if isinstance(size, int) and name not in table},
            lambda _, missing: (
                f", and {missing} has no number there",
                f"add {missing} to the set, for example {missing} = 4",
            ),
        )
        order = sorted(table, key=lambda name: (ORDER.get(name, len(ORDER)), name))
        return {name: numbers[name] for name in order}


KEYS = tuple(field.encode_name for field in msgspec.structs.fields(ProjectTarget))
"""The keys of a target, as they are documented; `input` and `claim` are read too."""

_SHARED = ("sizes", "claims", "dim", *(key.replace("_", "-") for key in SIZE_KEYS), *_RUN)
"""The keys that the defaults can have; the others describe one target."""
_SETS = "for example sizes = [{ B = 2, L = 10 }, { B = 1, L = 1 }]"
_PATH = re.compile(r" - at `\$\.(?P<key>[\w-]+)(?P<inner>[^`]*)`$")
_GOT = re.compile(r", got `(\w+)`")
_KINDS = {
    "str": "a string",
    "bool": "true or false",
    "int": "an integer",
    "float": "a float",
    "array": "an array",
    "object": "a table",
}
_FORMS = {
    "target": ("a string", '"model.py:Name"'),
    "init": ("a string", '"D, H"'),
    "inputs": ("strings", '["x: B L D"]'),
    "with": ("strings, numbers or booleans by name", '{ scale = "Dk**-0.5" }'),
    "inside": ("a string", '"transformer.h.0.attn"'),
    "sizes": ("a table of sizes, or a list of such tables", "[{ B = 2, L = 10 }, { B = 1, L = 1 }]"),
    "claims": ("strings", '["causal"]'),
    "expect": ("strings", '["scores: B H L L"]'),
    "dim": ("numbers or expressions by name", "{ nh = 4 }"),
    **{name.replace("_", "-"): (expected, literal(example)) for name, (expected, example) in EXPECTED.items()},
    **dict.fromkeys(("causal", "padding", "no-bias", "train", "grad"), ("true or false", "true")),
    **{key.replace("_", "-"): (f"a whole number from 1 up to {LARGEST}", "4") for key in SIZE_KEYS},
}
"""What each key takes, and an example."""


def decode_target(
    name: str, table: object, typed_sizes: Collection[str] = (), defaults: Mapping[str, Any] | None = None
) -> ProjectTarget:
    """Return a target of pyproject.toml, with the defaults for the keys that it lacks.

    Its expressions may use sizes that the user typed. Raises AttnshapeError, which names target and key, if anything is
    invalid.
    """
    context = f"{FILE}: target {_shown(name)}"
    if not name.strip() or ":" in name:
        what = "has a colon, as file.py:Name has" if name.strip() else "is empty"
        raise AttnshapeError(f"{FILE}: the name of target {_shown(name)} {what}", "give it another name")
    if not isinstance(table, dict):
        raise AttnshapeError(
            f"{context} is {_KINDS.get(type(table).__name__, 'no table')}, expected a table",
            'write [tool.attnshape.targets.NAME] with target = "model.py:Name"',
        )
    try:
        own = _with_plural_keys(table)
        target = _converted({**_defaults_beside(own, defaults or {}), **own})
        # each set as it will be run: with the target's other sizes
        for _, spec in target.over(TargetSpec()):
            spec.require_known_symbols(typed_sizes)
    except AttnshapeError as error:
        raise error.written_in(toml_syntax, f"{context}: ") from None
    return target


def _with_plural_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    for key, plural in _PLURALS.items():
        if key in table and plural in table:
            raise AttnshapeError(f"the key {key} is given twice, as {key} and as {plural}", "keep one of them")
    return {_PLURALS.get(key, key): value for key, value in table.items()}


def _converted(table: Mapping[str, Any]) -> ProjectTarget:
    try:
        return msgspec.convert(table, ProjectTarget, strict=False)
    except msgspec.ValidationError as error:
        raise _translated(str(error), table) from None


def _defaults_beside(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults without the sizes that a target's own keys give in another form."""
    tables = own.get("sizes", [])
    in_sets = {
        name for one in (tables if isinstance(tables, list) else [tables]) if isinstance(one, dict) for name in one
    }
    by_key = {SIZE_KEYS[key.replace("-", "_")] for key in own if key.replace("-", "_") in SIZE_KEYS}
    kept = {key: value for key, value in defaults.items() if SIZE_KEYS.get(key.replace("-", "_")) not in in_sets}
    if by_key and "sizes" in kept:
        sets = kept["sizes"] if isinstance(kept["sizes"], list) else [kept["sizes"]]
        left = [{name: size for name, size in one.items() if name not in by_key} for one in sets]
        distinct = [one for place, one in enumerate(left) if one and one not in left[:place]]
        kept["sizes"] = distinct or None
    return kept


def project_targets() -> dict[str, Any]:
    """Return what the current folder's pyproject.toml has under each name, not validated yet.

    Raises AttnshapeError if the file isn't TOML, or its targets aren't a table.
    """
    return _table("targets", 'write [tool.attnshape.targets.NAME] with target = "model.py:Name"')


def project_defaults() -> dict[str, Any]:
    """Return the keys that the project's targets share; those of a target override them.

    Raises AttnshapeError if one is unknown or invalid, or describes one target only.
    """
    defaults = _with_plural_keys(_table("defaults", "write [tool.attnshape.defaults] with, for example, batch = 4"))
    context = f"{FILE}: the defaults: "
    for key in defaults:
        if key in KEYS and key not in _SHARED:
            hint = f"write it below the target; the defaults take {', '.join(_SHARED)}"
            raise AttnshapeError(f"{context}the key {key} is of one target", hint)
    try:
        _converted({"target": "defaults", **defaults}).spec()
    except AttnshapeError as error:
        raise error.written_in(toml_syntax, context) from None
    return defaults


def _table(name: str, hint: str) -> dict[str, Any]:
    """Return a table of the current folder's pyproject.toml below `tool.attnshape`; an empty one if it has none."""
    path = Path(FILE)
    if not path.is_file():
        return {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise AttnshapeError(f"{FILE} can't be read: {error}", "fix it, or name the target as file.py:Name") from None
    except RecursionError:
        raise AttnshapeError(f"{FILE} can't be read: it is nested too deeply", "fix it") from None
    for key in ("tool", "attnshape", name):
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise AttnshapeError(f"{FILE}: tool.attnshape.{name} isn't a table of {name}", hint)
    return table


def require_targets() -> dict[str, Any]:
    """Return what `project_targets` does. Raises AttnshapeError if the file names none."""
    targets = project_targets()
    if not targets:
        missing = f"{FILE} names no target" if Path(FILE).is_file() else f"there is no {FILE} in the current folder"
        raise AttnshapeError(f"--all runs every target that {FILE} names, and {missing}", _EXAMPLE)
    return targets


def declared_target(spec: TargetSpec) -> ProjectTarget | None:
    """Return what pyproject.toml declares for a target: under its name, or as defaults for the user's own code.

    None if it declares nothing. Raises AttnshapeError if what it has can't be a target.
    """
    name = spec.target
    if spec.callable is not None or not name:
        return None
    if ":" not in name:
        targets = project_targets()
        return decode_target(name, targets[name], spec.sizes, project_defaults()) if name in targets else None
    where = name.partition(":")[0]
    defaults = project_defaults() if "." in where or "/" in where else {}
    return _converted({"target": name, **defaults}) if defaults else None


def resolve_name(typed: TargetSpec, run: Mapping[str, object], command: str) -> tuple[TargetSpec, RunOptions]:
    """Return the target and its run options; the user's options override those of the target in pyproject.toml.

    Raises AttnshapeError if a value is invalid, or if the name has several sets of sizes.
    """
    declared = declared_target(typed)
    if declared is None:
        typed.require_known_symbols()
        return typed, run_options(run, command)
    (sizes, spec), *others = declared.over(typed)
    if others:
        raise AttnshapeError(
            f"target {_shown(typed.target)} of {FILE} lists {1 + len(others)} sets of sizes, and one is needed here",
            ("give the sizes of one of them: ", Option("sizes", sizes)),
        )
    spec.require_known_symbols()
    return spec, run_options({**declared.run(), **run}, command)


def toml_syntax(option: Option) -> str:
    """Return an option as a key of a target in pyproject.toml.

    >>> toml_syntax(Option("sizes", 4, "H")), toml_syntax(Option("inputs", "B L D", "x"))
    ('heads = 4', 'inputs = { x = "B L D" }')
    """
    name, value, key = option.field, option.value, option.key
    if name == "sizes" and isinstance(value, Mapping):
        return f"dim = {{ {', '.join(f'{symbol} = {_toml(size)}' for symbol, size in value.items())} }}"
    if name == "sizes" and key in SYMBOLS_BY_NAME:
        name, key = SYMBOLS_BY_NAME[key].flag.removeprefix("--"), None
    elif name == "options" and key is not None:
        name, key, value = ("no-bias", None, value if value is None else True) if key == "bias" else (key, None, value)
    name = {"arguments": "with", "sizes": "dim"}.get(name, name.replace("_", "-"))
    if value is None:
        return f"the key {name}" + (f".{key}" if key is not None else "")
    if key is not None:
        return f"{name} = {{ {key} = {_toml(value)} }}"
    return f"{name} = [{_toml(value)}]" if name in LISTS else f"{name} = {_toml(value)}"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else literal(value)


def _assignment(option: Option) -> str:
    return f"{option.key}" if option.value is None else f"{option.key} = {_toml(option.value)}"


def _translated(problem: str, table: Mapping[str, Any]) -> AttnshapeError:
    """Return msgspec's complaint about a target's table in our own words."""
    place = _PATH.search(problem)
    if place is None:
        if "missing required" in problem:
            return AttnshapeError("the key target is missing", 'write target = "model.py:Name"')
        key = problem.partition("`")[2].removesuffix("`")
        return AttnshapeError(
            f"the key {key[:60]} isn't one that a target has", did_you_mean(key, KEYS, "the keys are")
        )
    key, inner = place["key"], place["inner"]
    expected, example = _FORMS[key]
    got = _GOT.search(problem)
    value = table.get(key)
    if key == "target" and value is not None and not str(value).strip():
        return AttnshapeError("the key target is empty", f"write {key} = {example}")
    if value == [] and got is None:
        return AttnshapeError(
            f"the key {key} is an empty list", f"leave it out, or write for example {key} = {example}"
        )
    if got is not None:
        what = f"{'has' if inner else 'is'} {_KINDS.get(got[1], f'a {got[1]}')}"
    elif isinstance(value, int) and abs(value) > LARGEST**3:
        what = "is far too large"
    else:
        what = f"is {_toml(value)[:40]}"
    return AttnshapeError(f"the key {key} {what}, expected {expected}", f"for example {key} = {example}")


def _mapping(value: Any, parse: Any) -> dict[str, Any]:
    """Return what a table, a list of texts or one text has by name."""
    return value if isinstance(value, dict) else dict(parse(_listed(value)))


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _refuse_unknown(name: str, symbols: Mapping[str, int], dims: Mapping[str, int | str]) -> None:
    if name in symbols:
        key = SYMBOLS_BY_NAME[name].flag.removeprefix("--")
        raise AttnshapeError(
            f"{name}, which the key {key} of the same target gives too", f"keep one: {key}, or {name} in each set"
        )
    by_key = SIZE_KEYS.get(name.removeprefix("--").replace("-", "_"))
    if by_key is not None:
        raise AttnshapeError(f"{name[:40]!r}, which isn't a size symbol", f"write {by_key}, as in a signature")
    if name not in SYMBOLS_BY_NAME and name not in dims:
        hint = did_you_mean(name, [*SYMBOLS_BY_NAME, *dims], "the size symbols are")
        raise AttnshapeError(
            f"{name[:40]!r}, which isn't a size symbol", f"{hint} (or add your own: dim = {{ T = 4 }})"
        )


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
