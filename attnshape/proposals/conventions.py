"""What the names of parameters, configuration fields and axes stand for, by the conventions of attention code."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEPARATE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class _Convention:
    pattern: re.Pattern[str]
    expression: str


def _convention(expression: str, pattern: str) -> _Convention:
    return _Convention(re.compile(pattern), expression)


_NUMBER = r"(n|nb|nr|num|number_of|no|total)_?"
_ATTENTION = r"((self|cross|encoder|decoder|attention|attn|text|vision|d|model|qk|qkv|query|q)_)*"
_WIDE = r"dims?|size|width|channels?|features?|planes?|embd|emb|embed|hidden|units|model_size|model_dim|hidden_units"
_OF = (
    r"model|embd?|embed|embedding|embeddings|hidden|hiddens|state|input|in|out|output|query|key|value|context|kv|q|k|v"
    r"|cross_attention|cross|latents?|channels?|features?|token|inner|all_head|x|y|src|tgt|text|vision|encoder|decoder"
    r"|memory|attn|attention"
)
_CONVENTIONS = (
    _convention("0", r"(layer|block)_?(idx|id|index)|(start|cache|input|past)_(pos|position|len|length)"),
    _convention("1", r"layer_(num|number)"),
    _convention(
        "Hkv",
        rf"({_NUMBER})?(kv|key_value|kv_attention|attention_kv)_?heads?|({_NUMBER})?(query|kv)_groups?|{_NUMBER}kv",
    ),
    _convention("Dv", r"d_?v|dim_v|v_dim|v_head_dim|dim_value|value_dim|d_value|head_dim_v|dim_head_v|d_values"),
    _convention(
        "Dk",
        rf"{_ATTENTION}(head_?(dim|size|width|channels|features)|(dim|size|width|channels|d)_?(per_|of_)?(each_)?heads?)"
        r"|rotary_dim|rot_dim|d_?k|dim_k|d_q|d_qk|qk_dim|dim_key|d_key|d_keys|d_kv|head_channel|kv_channels|num_head_channels|d_attn",
    ),
    _convention("H", rf"{_ATTENTION}({_NUMBER})?({_ATTENTION})heads?|nh|h"),
    _convention("V", rf"({_NUMBER})?(src_|tgt_|text_)?vocab(ulary)?(_?size)?|n_?tokens?|num_tokens"),
    _convention("N", rf"{_NUMBER}(hidden_)?(encoder_|decoder_)?(layers?|blocks?)|layers|depth"),
    _convention("W", r"(local_|sliding_|attention_|attn_)?window(_size|_length|_len)?"),
    _convention("B", r"(max_)?(batch|bs|bsz)(_size)?"),
    _convention(
        "L",
        r"(max_|maximum_)?(seq|sequence|context|ctx|token|tokens|position|positions|input|src|source|tgt|block)_?"
        rf"(len|length|size|embeddings)|(max|maximum)_(len|length|position|positions|position_embeddings|context)"
        rf"|{_NUMBER}(ctx|positions|patches|tokens)|seqlen|seq|length|max_seqlen|original_max_position_embeddings",
    ),
    _convention(
        "4*D",
        r"(d|dim)_?ff|(ffn?|feed_?forward|mlp|intermediate|ffn_hidden|feedforward)_?(dim|size|width|hidden_dim)?"
        r"|dim_feedforward|encoder_ffn_dim|decoder_ffn_dim",
    ),
    _convention("height", r"(f|feature_?|feat_?)maps?_(size|resolution|res)"),
    _convention("D", rf"d|c|e|{_WIDE}|(d|n|dim)_?({_OF})|({_OF})_?({_WIDE})|(d|n)_?embd"),
)
_OFF = re.compile(r"(\w+_)?(drop|dropout|pdrop|droppath)(_?(rate|prob|p|path))?|p_drop\w*|drop\w*|p")
_EPSILON = re.compile(r"(\w+_)?(eps|epsilon)")
_BASE = re.compile(r"(rope_|rotary_)?(theta|base)")
_KERNEL = re.compile(r"(\w+_)?kernel(_size)?")
_STRIDE = re.compile(r"(\w+_)?(stride|dilation|groups|dilation_rate)")
_TEMPERATURE = re.compile(r"(softmax_)?temperature|temp")
_SLOPE = re.compile(r"(negative_)?(slope|alpha)")
_COUNT = re.compile(r"(n|nb|nr|num|number_of|no|total)_[a-z]\w+")
_CONSTANTS = (
    (_OFF, "0.0"),
    (_EPSILON, "1e-06"),
    (_BASE, "10000.0"),
    (_TEMPERATURE, "Dk**0.5"),
    (_SLOPE, "0.2"),
    (_KERNEL, "3"),
    (_STRIDE, "1"),
    (_COUNT, "2"),
)
_CONFIG = re.compile(
    r"(\w+_)?(config|cfg|conf|configuration|hparams|hps|hp|args|arguments|params|opt|opts|options|settings)"
)
_MASK = re.compile(r"(\w+_)?(mask|masks)|mask\w*")
_BIAS = re.compile(r"(attn|attention|position|pos|relative|rel|rel_pos|relative_position|score)_bias|alibi|rel_pos")
_FREE_OF_CHOICE = re.compile(
    r"past_key_values?|past|layer_past|past_kv|cache|kv_cache|caches|state|(\w+_)?head_mask|device|dtype|(\w+_)?mask|mask\w*"
    r"|attn_bias|cache_position\w*"
)
_QUERY = re.compile(r"q|qs|(\w+_)?quer(y|ies)(_\w+)?|xq|tgt|target")
_MEMORY = re.compile(
    r"k|ks|v|vs|kv|xk|xv|(\w+_)?(keys?|values?|key_value|memory|context|encoder\w*|source|src|cond|conditioning)(_\w+)?"
)
_IDS = re.compile(r"(\w+_)?(ids?|idx|tokens|indices|token_ids|input_ids)")
_POSITIONS = re.compile(r"(\w+_)?(pos|positions?|position_ids|pos_ids)")

AXES = {
    "B": re.compile(r"b|bs|bsz|bz|nb|batch(_?size)?|batches|n_batch|nbatches|num_batch(es)?|_?b"),
    "H": re.compile(r"h|nh|heads?|(n|num)_heads?|n_?head|hs"),
    "L": re.compile(
        r"t|l|n|s|i|seq(_?len(gth)?)?|length|len|(q|tgt|src|target|query)_?len(gth)?|seqlen|num_tokens|n_tokens|time|slen|tokens"
    ),
    "D": re.compile(
        r"c|d|e|f|dim|channels?|embed(_?dim)?|embd|n_embd|hidden(_?(size|dim))?|d_model|width|features|emb(_?dim)?|model_dim"
    ),
    "height": re.compile(r"h|hh|height|rows?"),
    "width": re.compile(r"w|ww|width|cols?|columns?"),
}
"""Which names an axis has, by its size symbol. `h` is either a number of heads or a height."""


def plain(name: str) -> str:
    """Return a name in lower case, with its words separated by `_`.

    >>> plain("numHeads"), plain("d_model")
    ('num_heads', 'd_model')
    """
    return _SEPARATE.sub("_", name).lower().strip("_")


def size_of(name: str) -> str | None:
    """Return the expression of the size that a parameter or field stands for, or None.

    >>> [size_of(name) for name in ("n_embd", "nhead", "num_key_value_heads", "head_dim", "block_size", "d_ff", "mask")]
    ['D', 'H', 'Hkv', 'Dk', 'L', '4*D', None]
    """
    word = plain(name)
    if not word:
        return None
    return next((one.expression for one in _CONVENTIONS if one.pattern.fullmatch(word)), None)


def constant_of(name: str) -> str | None:
    """Return the number that a parameter or field gets whatever the sizes are, or None.

    >>> constant_of("attn_pdrop"), constant_of("layer_norm_eps"), constant_of("num_buckets"), constant_of("x")
    ('0.0', '1e-06', '2', None)
    """
    word = plain(name)
    return next((constant for pattern, constant in _CONSTANTS if pattern.fullmatch(word)), None)


def is_config(name: str) -> bool:
    """Return whether a parameter of this name is an object that has the sizes as attributes."""
    return _CONFIG.fullmatch(plain(name)) is not None


def may_be_none(name: str) -> bool:
    """Return whether a parameter of this name is something to leave out: a mask, a cache, a device."""
    return _FREE_OF_CHOICE.fullmatch(plain(name)) is not None


def is_mask(name: str) -> bool:
    """Return whether a parameter of this name is a mask."""
    return _MASK.fullmatch(plain(name)) is not None


def is_bias(name: str) -> bool:
    """Return whether a parameter of this name is added to the scores."""
    return _BIAS.fullmatch(plain(name)) is not None


def is_query(name: str) -> bool:
    """Return whether a parameter of this name has the queries."""
    return _QUERY.fullmatch(plain(name)) is not None


def is_memory(name: str) -> bool:
    """Return whether a parameter of this name has what the keys and values come from."""
    return _MEMORY.fullmatch(plain(name)) is not None


def is_value(name: str) -> bool:
    """Return whether a parameter of this name has the values alone.

    >>> is_value("value"), is_value("key_value")
    (True, False)
    """
    return re.fullmatch(r"v|vs|xv|values?|value_states|value_layer", plain(name)) is not None


def has_all_projections(name: str) -> bool:
    """Return whether a parameter of this name has queries, keys and values side by side."""
    return re.fullmatch(r"(\w+_)?qkv(_\w+)?", plain(name)) is not None


def has_ids(name: str) -> bool:
    """Return whether a parameter of this name has indices into a vocabulary."""
    return _IDS.fullmatch(plain(name)) is not None


def has_positions(name: str) -> bool:
    """Return whether a parameter of this name has the positions of tokens."""
    return _POSITIONS.fullmatch(plain(name)) is not None and size_of(name) is None


def axes_named(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the symbols of axes with these names, in order; None if these aren't certain.

    Of three axes, and of four, one may have a name that says nothing.

    >>> axes_named(("B", "T", "C")), axes_named(("b", "h", "w", "c")), axes_named(("bsz", "h", "l", "d"))
    (('B', 'L', 'D'), ('B', 'height', 'width', 'D'), ('B', 'H', 'L', 'Dk'))
    >>> axes_named(("seq_len", "batch_size", "_")), axes_named(("b", "_", "_"))
    (('L', 'B', 'D'), None)
    """
    words = [plain(name) for name in names]
    is_map = any(AXES["width"].fullmatch(word) for word in words) and len(words) >= 4
    order = ("height", "width", "B", "L", "D") if is_map else ("B", "H", "L", "D")
    symbols = [next((one for one in order if AXES[one].fullmatch(word)), "") for word in words]
    expected = {3: ("B", "L", "D"), 4: ("B", "height", "width", "D") if is_map else ("B", "H", "L", "D")}
    missing = [symbol for symbol in expected.get(len(names), ()) if symbol not in symbols]
    if symbols.count("") == len(missing) == 1:
        symbols[symbols.index("")] = missing[0]
    if "" in symbols or len(set(symbols)) < len(symbols):
        return None
    return tuple("Dk" if symbol == "D" and "H" in symbols else symbol for symbol in symbols)
