"""A model that a Hugging Face config.json describes: symbols for its sizes, and inputs of the kinds that it takes."""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnshape.dims.expressions import TensorSpec, parse_expression, parse_tensor
from attnshape.dims.sizes import Sizes, are_large, check_size
from attnshape.dims.symbols import ORDER, SYMBOLS_BY_NAME, require_known, size_option
from attnshape.errors import AttnshapeError, Option, format_exception
from attnshape.model.trace import Size
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.runtime.isolation import seed_all
from attnshape.runtime.time_limit import reraise_interruption_or_timeout
from attnshape.targets.inputs import device_context, make_tensor
from attnshape.targets.target import Target
from attnshape.targets.user import runnable_from_case
from attnshape.tracing.runner import Runnable

_SYMBOLS = {
    "hidden_size": "D",
    "num_attention_heads": "H",
    "num_key_value_heads": "Hkv",
    "head_dim": "Dk",
    "d_kv": "Dk",
    "v_head_dim": "Dv",
    "vocab_size": "V",
    "num_hidden_layers": "N",
    "intermediate_size": "F",
    "d_ff": "F",
    "encoder_ffn_dim": "F",
    "ffn_dim": "F",
    "n_inner": "F",
    "moe_intermediate_size": "Fe",
    "q_lora_rank": "Rq",
    "kv_lora_rank": "Rkv",
    "qk_nope_head_dim": "Dn",
    "qk_rope_head_dim": "Dr",
    "max_source_positions": "Lk",
    "decoder_attention_heads": "H",
    "decoder_layers": "N",
    "num_decoder_layers": "N",
    "decoder_ffn_dim": "F",
}
"""The symbols of a configuration's fields; a field of a decoder has its own where its size is another one."""
_KINDS = ("layer_types", "mlp_layer_types")
"""Fields that list the kind of each layer."""
_DENSE_FIRST = "first_k_dense_replace"
"""The field for how many layers at the start have no experts."""
_OF_IMAGES = ("P", "S")
"""How many patches an image has along a side, and the pixels along a side of a patch."""
_ENDINGS = {"text_config": "", "vision_config": "i", "audio_config": "a"}
"""What the symbols of a part of a configuration end in."""
_INPUTS_OF = {"vision_config": "pixel_values", "audio_config": "input_features"}
_LEAST = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
"""Sizes of a part that the inputs don't reach: it is built only because the model can't be without it."""
_TOKEN = re.compile(r"\w+_token_(id|index)")
"""The fields that are ids of tokens."""
_LENGTHS = ("L", "Lq", "Lk")
_MOST_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")
_DIFFERENT_LAYERS = ("mlp_only_layers", "no_rope_layers", "cross_attention_layers")
"""Fields that make some layers different."""


@dataclass
class _Symbols:
    """The symbols of a configuration."""

    defaults: dict[str, int] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)
    """The expressions of symbols that follow from others."""
    fields: list[tuple[str, str, str]] = field(default_factory=list)
    """The path of a part of the configuration, one of its fields, and the expression of its size."""

    counts: dict[str, int] = field(default_factory=dict)
    """Symbols that count layers or groups of them, and the fewest that show all there is."""
    uneven: list[str] = field(default_factory=list)
    """Those of them that count layers which differ without regularity."""
    rotated: list[str] = field(default_factory=list)
    """Symbols of heads' widths whose features rotate in pairs."""
    idle: tuple[str, ...] = ()
    """The paths of parts that the inputs don't reach, as where a model gets no image. They have no symbols."""

    def add(self, part: str, name: str, symbol: str, size: int) -> None:
        """Give a field's size a symbol: another one, if the symbol has another size."""
        while self.defaults.get(symbol, size) != size:
            symbol += "d"
        self.defaults[symbol] = size
        self.fields.append((part, name, symbol))


def config_target(spec: TargetSpec) -> Target:
    """Return the model that a config.json describes, as a target whose sizes are those of the configuration.

    The model is of the class that the file names in `architectures`, else the one that `AutoModel` chooses. It is
    built with random weights; no code of the file's authors is run and nothing is downloaded.

    Raises AttnshapeError if transformers isn't installed, or the file isn't a configuration that it knows.
    """
    unfit = ("init", "inputs", "arguments", "values", "options")
    given = next((option for option in unfit if getattr(spec, option)), None)
    if given is not None:
        why = ("a configuration takes no ", Option("arguments" if given == "values" else given))
        raise AttnshapeError(why, "its inputs follow from its model; give sizes")
    config, model_class = _read(Path(spec.target))
    symbols = _symbols(config)
    inputs = tuple(_inputs(config, model_class, symbols))
    if idle := tuple(path for path, ending in _ENDINGS.items() if ending and not _reads(inputs, path)):
        symbols = _symbols(config, idle)
    sizes = _sizes(symbols, inputs, spec)

    even = [name for name in symbols.rotated if name in sizes.independent]

    def build(numbers: Mapping[str, int], options: RunOptions) -> Runnable:
        seed_all(options.seed)
        try:
            with device_context(options):
                model = _construct(model_class, _resized(config, symbols, numbers))
        except BaseException as error:
            reraise_interruption_or_timeout(error)
            at = ", ".join(f"{symbol}={numbers[symbol]}" for symbol in sizes.independent)
            why = f"{spec.target} can't be built at {at}: {format_exception(error)}"
            raise AttnshapeError(why, "give other sizes, or correct the file") from error
        seed_all(options.seed)
        tensors = {tensor.name: make_tensor(tensor, numbers, options) for tensor in inputs}
        return runnable_from_case(spec.target, (model, (), tensors), options)

    return Target(
        spec.target,
        sizes,
        build,
        is_builtin=False,
        prefers_meta=are_large(sizes),
        even=tuple(even),
        counts=symbols.counts,
        uneven=tuple(symbols.uneven),
    )


def _read(path: Path) -> tuple[Any, Any]:
    """Return the configuration in a file, and the class of its model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AttnshapeError(f"can't read {path}: {error.strerror}", "make it readable") from None
    except (ValueError, RecursionError) as error:
        raise AttnshapeError(f"{path} isn't JSON: {error}", "name a model's config.json") from None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        hint = "name a model's config.json, or show a saved trace with attnshape show"
        raise AttnshapeError(f"{path} is no configuration of a Hugging Face model: it has no model_type", hint)
    try:
        import transformers
    except ImportError:
        hint = "pip install 'attnshape[transformers]'"
        raise AttnshapeError(f"{path} describes a model of transformers, which isn't installed", hint) from None
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        hint = "update transformers, or name the model's class: model.py:Name"
        raise AttnshapeError(f"transformers {transformers.__version__} knows no model type {kind!r}", hint)
    values = {name: value for name, value in content.items() if name not in ("model_type", "auto_map")}
    try:
        config = known[kind].from_dict(values)
    except Exception as error:
        reraise_interruption_or_timeout(error)
        why = f"{path} is no configuration of {kind!r}: {format_exception(error)}"
        raise AttnshapeError(why, "correct the file") from error
    names = content.get("architectures") or []
    named = next((getattr(transformers, name, None) for name in names if isinstance(name, str)), None)
    is_model = inspect.isclass(named) and issubclass(named, transformers.PreTrainedModel)
    return config, named if is_model else transformers.AutoModel


def _construct(model_class: Any, config: Any) -> Any:
    return model_class.from_config(config) if hasattr(model_class, "from_config") else model_class(config)


def _parts(config: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield the parts of a configuration: the path, the part, and what its symbols end in."""
    yield "", config, ""
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            yield name, part, _ENDINGS.get(name, name[0])


def _reads(inputs: tuple[TensorSpec, ...], path: str) -> bool:
    """Return whether the inputs of a model reach a part of it."""
    return _INPUTS_OF[path] in {tensor.name for tensor in inputs}


def _symbols(config: Any, idle: tuple[str, ...] = ()) -> _Symbols:
    symbols = _Symbols(idle=idle)
    for path, part, ending in _parts(config):
        if path in idle:
            continue
        own = _Symbols()
        for name, symbol in _SYMBOLS.items():
            size = getattr(part, name, None)
            if type(size) is not int or size < 1:
                continue
            if symbol == "Lk" and not getattr(part, "is_encoder_decoder", False):
                continue
            own.add(path, name, symbol, size)
        own.counts = {symbol: 2 for _, name, symbol in own.fields if _SYMBOLS[name] == "N"}
        if "N" in own.counts:
            _relate_layers(own, part, path)
        _relate(own, part, path)
        patch, image = getattr(part, "patch_size", None), getattr(part, "image_size", None)
        if isinstance(patch, int) and isinstance(image, int) and image % patch == 0:
            own.defaults |= {"P": image // patch, "S": patch}
            own.fields += [(path, "patch_size", "S"), (path, "image_size", "P*S")]
        _merge(symbols, own, ending)
    return symbols


def _relate_layers(own: _Symbols, part: Any, path: str) -> None:
    """Let N count layers of one kind or groups of layers that repeat; else all layers, which no trace varies."""
    layers = own.defaults["N"]
    kinds = _kinds_of_layers(part)
    dense = getattr(part, _DENSE_FIRST, None) or 0
    dense = dense if dense < layers else 0
    group = _period(kinds) if len({*kinds}) > 1 else 1
    if any(getattr(part, name, None) for name in _DIFFERENT_LAYERS) or (dense and group != 1):
        own.fields = [known for known in own.fields if known[2] != "N"]
        del own.defaults["N"], own.counts["N"]
        return
    text = "N"
    if dense:
        text = "Nd+N"
        own.counts |= {"N": 1, "Nd": 1}
        own.defaults |= {"N": layers - dense, "Nd": dense}
        own.fields.append((path, _DENSE_FIRST, "Nd"))
    elif group > 1 and layers % group == 0:
        text = f"{group}*N"
        own.counts["N"] = 1
        own.defaults["N"] = layers // group
    elif group != 1:
        own.counts["N"] = len({*kinds})
        own.uneven.append("N")
    own.fields = [(at, name, text if symbol == "N" else symbol) for at, name, symbol in own.fields]


def _kinds_of_layers(part: Any) -> list[tuple[Any, ...]]:
    """Return what a configuration says of each layer, an empty list if nothing."""
    return [*zip(*(kinds for name in _KINDS if (kinds := getattr(part, name, None))), strict=False)]


def _some_layers(kinds: Sequence[Any], count: int) -> list[int]:
    """Return which of the user's layers to build, every kind among them if possible.

    >>> _some_layers(["local", "local", "full", "local", "local", "full", "local"], 10)
    [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    >>> _some_layers(["local", "local", "full", "local"], 2)
    [0, 2]
    """
    if not kinds:
        return []
    group = _period(kinds) or len(kinds)
    if count < group:
        first = [place for place, kind in enumerate(kinds) if kind not in kinds[:place]]
        others = [place for place in range(group) if place not in first]
        return sorted([*first, *others][:count])
    return [place % group for place in range(count)]


def _period(kinds: Sequence[Any]) -> int:
    """Return after how many layers their kinds repeat, 0 if they don't.

    >>> _period(["local", "local", "full", "local", "local", "full", "local"])
    3
    """
    return next((places for places in range(1, len(kinds) // 2 + 1) if kinds[places:] == kinds[:-places]), 0)


def _relate(own: _Symbols, part: Any, path: str) -> None:
    """Express sizes by each other where they have to agree."""
    sizes = own.defaults
    rotated = sizes.get("Dr")
    if rotated is not None and "Dn" in sizes:
        # queries and keys are of two parts, one of which is rotated
        own.fields = [(at, name, "Dr" if name == "head_dim" else symbol) for at, name, symbol in own.fields]
        sizes.pop("Dk", None)
        own.derived["Dk"] = "Dn+Dr"
    elif {"D", "H"} <= sizes.keys() and sizes["D"] == sizes["H"] * sizes.get("Dk", sizes["D"] // sizes["H"]):
        sizes["Dk"] = sizes["D"] // sizes["H"]
        own.derived["D"] = "H*Dk"
    if "Hkv" in sizes:
        if sizes["Hkv"] == sizes.get("H"):
            del sizes["Hkv"]
            own.fields = [(at, name, "H" if symbol == "Hkv" else symbol) for at, name, symbol in own.fields]
        else:
            sizes["G"] = sizes["H"] // sizes["Hkv"]
            own.derived["H"] = "Hkv*G"
    # rotations, and tables of sines and cosines
    if getattr(part, "rope_parameters", None) or getattr(part, "max_source_positions", None):
        own.rotated += ["Dr" if rotated is not None else "Dk"]
    for name in _EXPERTS:
        if isinstance(experts := getattr(part, name, None), int) and experts > 1:
            chosen = getattr(part, "num_experts_per_tok", None) or 1
            step = math.lcm(chosen, getattr(part, "n_group", None) or 1)
            if experts % step == 0:
                sizes["Ek"] = experts // step
                sizes["E"] = experts
                own.derived["E"] = f"{step}*Ek"
                own.fields.append((path, name, "E"))
                break


def _merge(symbols: _Symbols, own: _Symbols, ending: str) -> None:
    """Add the symbols of a part; those of another kind of input have an ending."""

    def renamed(text: str) -> str:
        return re.sub(r"[A-Za-z]+", lambda name: name[0] if name[0] in _OF_IMAGES else name[0] + ending, text)

    for symbol, size in own.defaults.items():
        symbols.defaults.setdefault(renamed(symbol), size)
    for symbol, text in own.derived.items():
        symbols.derived.setdefault(renamed(symbol), renamed(text))
    symbols.counts |= {renamed(symbol): fewest for symbol, fewest in own.counts.items()}
    symbols.uneven += map(renamed, own.uneven)
    symbols.rotated += map(renamed, own.rotated)
    symbols.fields += [(path, name, renamed(text)) for path, name, text in own.fields]


def _sizes(symbols: _Symbols, inputs: tuple[TensorSpec, ...], spec: TargetSpec) -> Sizes:
    """Return the sizes of the configuration, with those that the user gave in their place.

    Raises AttnshapeError if the user gave an expression, a symbol that the model doesn't have, or contradicting sizes.
    """
    numbers = dict(symbols.defaults)
    for name in (name for tensor in inputs for name in tensor.symbols):
        if name in SYMBOLS_BY_NAME:
            numbers.setdefault(name, SYMBOLS_BY_NAME[name].default or 1)
    require_known(spec.sizes, [*numbers, *symbols.derived], spec.target)
    given = {name: size for name, size in spec.sizes.items() if isinstance(size, int)}
    if text := next((name for name in spec.sizes if name not in given), None):
        raise AttnshapeError((size_option(text, spec.sizes[text]), " isn't a number"), "give a number")
    numbers |= {name: check_size(name, size) for name, size in given.items()}
    follows = {name: parse_expression(text) for name, text in symbols.derived.items()}
    # a product comes after its factors
    follows = dict(sorted(follows.items(), key=lambda item: any(name in follows for name in item[1].symbols)))
    derived: dict[str, str] = {}
    for name, expression in follows.items():
        *others, last = expression.text.split("*")
        if not others or (last in given and name not in given):
            numbers[name] = expression.evaluate(numbers)
            derived[name] = expression.text
            continue
        rest = "*".join(others)
        quotient, remainder = divmod(numbers[name], parse_expression(rest).evaluate(numbers))
        if remainder or (last in given and quotient != numbers[last]):
            raise AttnshapeError(f"the sizes contradict each other: {name} = {expression.text}", "leave one out")
        numbers[last], derived[last] = quotient, f"{name}//{rest}"
    place = {name: place for place, name in enumerate([*ORDER, *numbers])}
    records = {
        name: Size(numbers[name], "derived", derived[name])
        if name in derived
        else Size(numbers[name], "given" if name in given else "default")
        for name in sorted(numbers, key=place.__getitem__)
    }
    return Sizes(records, follows, inputs={tensor.name: tensor.axes for tensor in inputs})


def _resized(config: Any, symbols: _Symbols, numbers: Mapping[str, int]) -> Any:
    """Return a copy of the configuration with other sizes."""
    resized = copy.deepcopy(config)
    for path, name, text in symbols.fields:
        setattr(_part(resized, path), name, parse_expression(text).evaluate(numbers))
    for path, part, _ in _parts(resized):
        for name, least in _LEAST.items() if path in symbols.idle else ():
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, least)
    longest = max(numbers.get(name, 0) for name in _LENGTHS)
    for path, part, _ in _parts(resized):
        layers = getattr(part, "num_hidden_layers", None)
        original = _part(config, path)
        chosen = _some_layers(_kinds_of_layers(original), layers) if isinstance(layers, int) else ()
        for name in _KINDS:
            if chosen and (kinds := getattr(original, name, None)):
                setattr(part, name, [kinds[place] for place in chosen])
        for name in _MOST_POSITIONS:
            if isinstance(most := getattr(part, name, None), int) and most < longest:
                setattr(part, name, longest)
        # a model of several parts has the ids itself, and the size of the vocabulary in the part for texts
        vocabulary: Any = getattr(part, "vocab_size", None) or numbers.get("V")
        for name in filter(_TOKEN.fullmatch, list(vars(part))) if isinstance(vocabulary, int) else ():
            if isinstance(token := getattr(part, name, None), int):
                setattr(part, name, min(token, vocabulary - 1))
        # whichever experts are chosen, the same operations run, and on meta too
        part._experts_implementation = "batched_mm"
    return resized


def _part(config: Any, path: str) -> Any:
    return getattr(config, path) if path else config


def _inputs(config: Any, model_class: Any, symbols: _Symbols) -> Iterator[TensorSpec]:
    """Yield the inputs of a model. Raises AttnshapeError if it takes inputs of another kind."""
    mapping = getattr(model_class, "_model_mapping", None)
    built = mapping[type(config)] if mapping is not None else model_class
    parameters = inspect.signature(built.forward).parameters
    main = built.main_input_name
    has_decoder = "decoder_input_ids" in parameters
    channels = next((part.num_channels for _, part, _ in _parts(config) if hasattr(part, "num_channels")), 3)
    image = next((text for _, name, text in symbols.fields if name == "image_size"), None)
    if main == "input_ids" and "V" in symbols.defaults:
        yield parse_tensor(main, f"int[V] B {'Lk' if has_decoder else 'L'}")
    elif main == "input_features" and "Lk" in symbols.defaults:
        yield parse_tensor(main, f"B {config.num_mel_bins} 2*Lk")
    elif main != "pixel_values" or image is None:
        why = f"what {built.__name__} takes, {main}, can't be worked out from its configuration"
        raise AttnshapeError(why, "write a case: a function of sizes that returns the model and its inputs")
    # a model that compares texts to images takes both
    is_contrastive = "pixel_values" in parameters and hasattr(config, "projection_dim")
    if main == "pixel_values" or (image is not None and is_contrastive):
        yield parse_tensor("pixel_values", f"B {channels} {image} {image}")
    if has_decoder:
        yield parse_tensor("decoder_input_ids", "int[V] B Lq")
