"""What the names of parameters, configuration fields and axes stand for, by the conventions of attention code."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_SEPARATE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class _Convention:
    pattern: re.Pattern[str]
    expression: str


def _convention(expression: str, pattern: str) -> _Convention:
    return _Convention(re.compile(pattern), expression)


_NUMBER = r"(n|nb|nr|num|num_of|number_of|no|total)_?"
_ATTENTION = r"((self|cross|encoder|decoder|attention|attn|text|vision|d|model|qk|qkv|query|q)_)*"
_WIDE = (
    r"dims?|dimensions?|size|width|channels?|feat(ure)?s?|planes?|embd|emb|embed|hidden|units|model_size|model_dim"
    r"|hidden_units"
)
_OF = (
    r"model|h|embd?|embed|embedding|embeddings|hidden|hiddens|state|input|in|out|output|query|key|value|context|kv|q|k|v"
    r"|cross_attention|cross|latents?|channels?|features?|feats?|token|inner|all_head|x|y|src|tgt|text|vision|encoder|decoder"
    r"|memory|attn|attention|enc|dec"
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
        r"|rotary_dim|rot_dim|rope_dim|d_?k|dim_k|d_q|d_qk|qk_dim|dim_key|d_key|d_keys|d_kv|head_channel|kv_channels|num_head_channels|d_attn|c_hidden",
    ),
    _convention("H", rf"{_ATTENTION}({_NUMBER})?({_ATTENTION})heads?(_?(count|num|number|cnt|n))?|nh|h"),
    _convention(
        "V",
        rf"({_NUMBER})?(src_|trg_|tgt_|text_)?vocab(ulary)?(_?size)?|n_?tokens?|num_tokens"
        rf"|{_NUMBER}(items?|users?|words?|products?|movies?|src_vocab|trg_vocab|tgt_vocab)"
        r"|(item|user|word|token|char|symbol)s?_(num|count|cnt|size)",
    ),
    _convention("N", rf"{_NUMBER}(hidden_)?(encoder_|decoder_)?(layers?|blocks?)|layers|depth"),
    _convention(
        "W",
        r"(local_|sliding_|attention_|attn_|att_)?((window|chunk|bucket|segment)(_size|_length|_len)?|group_size)"
        r"|(?!max_|maximum_)\w+_block_(size|length|len)",
    ),
    _convention("B", r"(max_)?(batch|bs|bsz)(_size)?"),
    _convention("Lq", r"(seq_?)?len(gth)?_(q|query|queries|tgt)|(q|query|tgt)_seq_?len(gth)?"),
    _convention("Lk", r"(seq_?)?len(gth)?_(k|kv|key|keys|src)|(k|kv|key|src)_seq_?len(gth)?"),
    _convention(
        "L",
        r"(max_|maximum_)?(seq|sequence|context|ctx|token|tokens|position|positions|input|src|source|tgt|block)_?"
        rf"(len|length|size|embeddings)"
        r"|(max|maximum)_?((source|target|src|tgt)_)?(len|length|position|positions|position_embeddings|pos_enc\w*|context)"
        rf"|{_NUMBER}(ctx|positions|patches|tokens|nodes?|vertices|variates|stations|sensors)|max_?t|seqlen|seq|length|max_seqlen|original_max_position_embeddings",
    ),
    _convention(
        "4*D",
        r"(d|dim)_?ff|(ffn?|feed_?forward|mlp|intermediate|ffn_hidden|feedforward)_?(dim|size|width|hidden_dim)?"
        r"|dim_feedforward|encoder_ffn_dim|decoder_ffn_dim",
    ),
    _convention(
        "height",
        r"(f|feature_?|feat_?)maps?_(size|resolution|res)|(input_|spatial_)?resolution|(spatial|spacial)_(dim|size)",
    ),
    _convention("frames", rf"{_NUMBER}(time_?steps?|frames)|time_?steps?"),
    _convention("D", rf"d|c|e|{_WIDE}|(d|n|c|dim)_?({_OF})|(num_)?({_OF})_?({_WIDE})|(d|n)_?embd|{_NUMBER}({_WIDE})"),
)
_OFF = re.compile(r"(\w+_)?(drop|dropout|pdrop|droppath)(_?(rate|prob|p|path))?|p_drop\w*|drop\w*|p")
_EPSILON = re.compile(r"(\w+_)?(eps|epsilon)")
_BASE = re.compile(r"(\w+_)?(theta|base)")
_KERNEL = re.compile(r"(\w+_)?kernel(_size)?")
_STRIDE = re.compile(r"(\w+_)?(stride|dilation|groups|dilation_rate)")
_TEMPERATURE = re.compile(r"(softmax_)?temperature|temp")
_SCALE = re.compile(r"((attn|attention|softmax|sm|logits?|qk|scores?)_)?scale")
_SCALING = re.compile(r"((attn|attention|softmax)_)?scaling(_factor)?")
_SLOPE = re.compile(r"(negative_)?(slope|alpha)")
_ACTIVATION = re.compile(r"act(ivation)?(_?(layer|fn|func|function))?")
_NORM = re.compile(r"norm(ali[sz]ation)?(_?(layer|fn|func))?")
_EARLIER_WEIGHTS = re.compile(
    r"(last|prev|previous|past)_(\w+_)?(align\w*|attn\w*|attention\w*|energ(y|ies)|weights)|(cumulative|cum)_\w+"
)
_COUNT = re.compile(r"(\w+_)?(n|nb|nr|num|number_of|no|total)_[a-z]\w+")
_LARGE = re.compile(r"inf(inity)?")
_FLAG = re.compile(
    r"(use|is|has|do|enable|return|output|with)_\w+|\w*bias|\w*causal|\w*gated?|flash\w*|(\w+_)?(bidirectional|shifted)"
)
_CONSTANTS = (
    (_OFF, "0.0"),
    (_EPSILON, "1e-06"),
    (_BASE, "10000.0"),
    (_TEMPERATURE, "Dk**0.5"),
    (_SCALE, "Dk**-0.5"),
    (_SCALING, "1.0"),
    (_SLOPE, "0.2"),
    (_KERNEL, "3"),
    (_STRIDE, "1"),
    (_COUNT, "2"),
    (_LARGE, "1e9"),
)
_CONFIG = re.compile(
    r"(\w+_)?(config|cfg|conf|configuration|hparams|hps|hp|args|arguments|params|opt|opts|options|settings)"
)
_MASK = re.compile(r"(\w+_)?(mask|masks)|mask\w*")
_BIAS = re.compile(r"(attn|attention|position|pos|relative|rel|rel_pos|relative_position|score)_bias|alibi|rel_pos")
_FREE_OF_CHOICE = re.compile(
    r"past_key_values?|past|layer_past|past_kv|cache|kv_cache|caches|state|(\w+_)?head_mask|device|dev|dtype|(\w+_)?mask|mask\w*"
    r"|attn_bias|cache_position\w*"
)
_STATES = r"(inputs?|x|h|hidden(_states)?|states?|feats?|features|tokens|seq|embs?)"
_QUERY = re.compile(rf"q|qs|(\w+_)?quer(y|ies)(_\w+)?|xq|{_STATES}_q|q_x|tgt|target")
_MEMORY = re.compile(
    rf"k|ks|v|vs|kv|xk|xv|xkv|{_STATES}_(kv|k|v)|kv_x|(\w+_)?(keys?|values?|key_value|memory|context|encoder\w*|source|src|cond|conditioning)(_\w+)?"
)
_IDS = re.compile(r"(\w+_)?(ids?|idx|tokens|indices|token_ids|input_ids)|\w+_(seqs?|sequences?)|seqs")
_ADJACENCY = re.compile(r"(\w+_)?(adj|adjacency|connectivity)(_?(mat|matrix|mask|matrices))?")
_CONDITION = re.compile(r"c|t|y|vec|style|adaln_input|(\w+_)?(t_?emb|time_?emb\w*|timestep_?emb\w*|cond|conditioning)")
_SIDES = (("height", "width"), ("H", "W"), ("h", "w"), ("Hp", "Wp"))
_BOTH_SIDES = re.compile(r"(feat|feature|spatial|hw|x|input|map)_(size|shape|resolution)|hw")
_EDGES = re.compile(r"edges?_(index|indices|list)|edges")
_POSITIONS = re.compile(r"(\w+_)?(pos|positions?|position_ids|pos_ids|write_ind(ices|ex))")

_IN_WINDOW = re.compile(r"(window|win|w)_?(h|w|height|width|size|[12])|ws")

AXES = {
    "B": re.compile(r"b|bs|bsz|bz|nb|batch(_?size)?|batches|n_batch|nbatches|num_batch(es)?|_?b"),
    "H": re.compile(r"h|nh|heads?|(n|num)_heads?|n_?head|hs"),
    "L": re.compile(
        r"t|l|n|s|i|seq(_?len(gth)?)?|length|len|(q|k|kv|r|tgt|src|target|query|key)_?len(gth)?|seqlen|num_tokens|n_tokens|time|slen|tokens"
    ),
    "D": re.compile(
        r"c|d|e|f|dim|channels?|embed(_?dim)?|embd|n_embd|hidden(_?(size|dim))?|d_model|width|features|emb(_?dim)?|model_dim"
    ),
    "height": re.compile(r"h|hh|height|((n|num)_)?rows?"),
    "width": re.compile(r"w|ww|width|((n|num)_)?(cols?|columns?)"),
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

    >>> [size_of(name) for name in ("n_embd", "nhead", "num_kv_heads", "head_dim", "block_size", "k_block_size", "m")]
    ['D', 'H', 'Hkv', 'Dk', 'L', 'W', None]
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


def is_flag(name: str) -> bool:
    """Return whether a parameter or field of this name is true or false.

    >>> [is_flag(name) for name in ("qkv_bias", "causal", "use_rope", "user")]
    [True, True, True, False]
    """
    return _FLAG.fullmatch(plain(name)) is not None


def turns_attention_on(name: str) -> bool:
    """Return whether a flag of this name tells a block to have attention.

    >>> turns_attention_on("attention"), turns_attention_on("use_attn"), turns_attention_on("flash_attention")
    (True, True, False)
    """
    return re.fullmatch(r"(use_|with_|has_|add_)?(self_)?(attn|attention)", plain(name)) is not None


def is_config(name: str) -> bool:
    """Return whether a parameter of this name is an object that has the sizes as attributes."""
    return _CONFIG.fullmatch(plain(name)) is not None


def may_be_none(name: str) -> bool:
    """Return whether a parameter of this name is something to leave out: a mask, a cache, a device."""
    return _FREE_OF_CHOICE.fullmatch(plain(name)) is not None


def is_cache(name: str) -> bool:
    """Return whether a parameter of this name has the keys and values of tokens before.

    >>> is_cache("kv_cache"), is_cache("past_key_values"), is_cache("cache_dir")
    (True, True, False)
    """
    return re.fullmatch(r"(\w+_)?(kv_?)?caches?|(layer_)?past(_key_values?|_kv)?", plain(name)) is not None


def is_mask(name: str) -> bool:
    """Return whether a parameter of this name is a mask."""
    return _MASK.fullmatch(plain(name)) is not None


def is_bias(name: str) -> bool:
    """Return whether a parameter of this name is added to the scores."""
    return _BIAS.fullmatch(plain(name)) is not None


def is_query(name: str) -> bool:
    """Return whether a parameter of this name has the queries.

    >>> is_query("q"), is_query("inputs_q"), is_query("x")
    (True, True, False)
    """
    return _QUERY.fullmatch(plain(name)) is not None


def is_memory(name: str) -> bool:
    """Return whether a parameter of this name has what the keys and values come from.

    >>> is_memory("kv_x"), is_memory("memory"), is_memory("inputs_kv"), is_memory("inputs_q")
    (True, True, True, False)
    """
    return _MEMORY.fullmatch(plain(name)) is not None


def is_key(name: str) -> bool:
    """Return whether a parameter of this name has the keys, perhaps with the values.

    >>> is_key("keys"), is_key("kv"), is_key("memory"), is_key("v")
    (True, True, False, False)
    """
    return re.fullmatch(r"k|ks|xk|kv|(\w+_)?keys?(_(value|states|layer))?", plain(name)) is not None


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


def has_earlier_weights(name: str) -> bool:
    """Return whether a parameter of this name has the weights of the decoding step before.

    >>> has_earlier_weights("last_alignment_energy"), has_earlier_weights("prev_attn"), has_earlier_weights("weights")
    (True, True, False)
    """
    return _EARLIER_WEIGHTS.fullmatch(plain(name)) is not None


def layer_of(name: str) -> str | None:
    """Return the class of torch's that a parameter stands for which is a layer, or None.

    >>> layer_of("activation"), layer_of("norm_layer"), layer_of("dropout")
    ('torch.nn.GELU', 'torch.nn.LayerNorm', None)
    """
    word = plain(name)
    if _ACTIVATION.fullmatch(word):
        return "torch.nn.GELU"
    return "torch.nn.LayerNorm" if _NORM.fullmatch(word) else None


def is_adjacency(name: str) -> bool:
    """Return whether a parameter of this name tells which nodes of a graph are neighbours, as a square matrix."""
    return _ADJACENCY.fullmatch(plain(name)) is not None


def has_edges(name: str) -> bool:
    """Return whether a parameter of this name has the edges of a graph, as two rows of indices."""
    return _EDGES.fullmatch(plain(name)) is not None


def is_condition(name: str) -> bool:
    """Return whether a parameter of this name has one vector for each batch element, as of a diffusion's time step."""
    return _CONDITION.fullmatch(plain(name)) is not None


def has_borders(name: str) -> bool:
    """Return whether a parameter of this name has the places in a batch without padding where sequences begin.

    >>> has_borders("cu_seqlens"), has_borders("seqlen")
    (True, False)
    """
    return re.fullmatch(r"cu_?seq_?lens?(_[qk]\w*)?", plain(name)) is not None


def side_of_map(name: str, names: Collection[str]) -> str | None:
    """Return the size of a feature map that a parameter among others has: a side, or both; None if it has none.

    >>> side_of_map("H", ["x", "H", "W"]), side_of_map("h", ["h", "adj"])
    ('height', None)
    >>> side_of_map("hw_shape", ["x", "hw_shape"]), side_of_map("size", ["x", "size"])
    ('(height, width)', None)
    """
    if sides := next((pair for pair in _SIDES if set(pair) <= set(names)), None):
        return dict(zip(sides, ("height", "width"), strict=True)).get(name)
    return "(height, width)" if _BOTH_SIDES.fullmatch(plain(name)) else None


def has_positions(name: str) -> bool:
    """Return whether a parameter of this name has the positions of tokens."""
    return _POSITIONS.fullmatch(plain(name)) is not None and size_of(name) is None


def may_be_width(name: str) -> bool:
    """Return whether a parameter of this name is the width of something, though not one that is known.

    >>> may_be_width("audio_dim"), may_be_width("rnn_size"), may_be_width("dimmer")
    (True, True, False)
    """
    return re.fullmatch(rf"\w+_({_WIDE})", plain(name)) is not None


def has_coordinates(name: str) -> bool:
    """Return whether a parameter of this name has the places of points in space.

    >>> has_coordinates("xyz"), has_coordinates("query_coords"), has_coordinates("pos")
    (True, True, False)
    """
    return re.fullmatch(r"(\w+_)?(xyz|coords?|coordinates|points_xyz)", plain(name)) is not None


def has_lengths(name: str) -> bool:
    """Return whether a parameter of this name has the number of tokens of each batch element.

    >>> has_lengths("lengths"), has_lengths("key_lengths"), has_lengths("x_lens"), has_lengths("enc_len")
    (True, True, True, True)
    >>> has_lengths("length"), has_lengths("max_len")
    (False, False)
    """
    pattern = r"(\w+_)?(lengths|lens)(_[a-z])?|\w+_len(gth)?"
    return re.fullmatch(pattern, plain(name)) is not None and size_of(name) is None


def has_places(name: str) -> bool:
    """Return whether a parameter of this name has the places of a cache to which a call writes, one for each token."""
    return re.search(r"write|cache", plain(name)) is not None


def axes_of_windows(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the symbols of five axes or more, of which some count windows or the positions inside of one.

    >>> axes_of_windows(("batch", "height", "width", "window_height", "window_width", "_"))
    ('B', 'height', 'width', 'W', 'W', 'D')
    """
    words = [plain(name) for name in names]
    if len(words) < 5:
        return None
    symbols = ["W" if _IN_WINDOW.fullmatch(word) else "" for word in words]
    for place, word in enumerate(words):
        known = (one for one in ("height", "width", "B", "L", "D") if AXES[one].fullmatch(word) and one not in symbols)
        symbols[place] = symbols[place] or next(known, "")
    if symbols[-1] == "" and "D" not in symbols:
        symbols[-1] = "D"
    return None if "" in symbols or "W" not in symbols else tuple(symbols)


def symbol_of_axis(name: str) -> str | None:
    """Return the size symbol of an axis of this name, None if it says nothing.

    >>> [symbol_of_axis(name) for name in ("batch", "n_head", "klen", "d_head", "dec_hidden_dim", "foo")]
    ['B', 'H', 'L', 'Dk', 'D', None]
    """
    word = plain(name)
    if size_of(name) == "Dk":
        return "Dk"
    known = next((symbol for symbol in ("B", "H", "L", "D") if AXES[symbol].fullmatch(word)), None)
    return known or ("D" if may_be_width(name) else None)


def with_batch_named(names: Sequence[str]) -> list[str]:
    """Return the plain names of axes; an `N` in front of another length, or of a map, is the batch.

    >>> with_batch_named(["N", "T", "C"]), with_batch_named(["N", "C", "H", "W"]), with_batch_named(["N", "C"])
    (['batch', 't', 'c'], ['batch', 'c', 'h', 'w'], ['n', 'c'])
    """
    words = [plain(name) for name in names]
    has_others = any(AXES[symbol].fullmatch(word) for word in words[1:] for symbol in ("L", "width"))
    return ["batch", *words[1:]] if words[:1] == ["n"] and has_others else words


def axes_named(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the symbols of axes with these names, in order; None if these aren't certain.

    Of three axes, and of four, one may have a name that says nothing.

    >>> axes_named(("B", "T", "C")), axes_named(("b", "h", "w", "c")), axes_named(("bsz", "h", "l", "d"))
    (('B', 'L', 'D'), ('B', 'height', 'width', 'D'), ('B', 'H', 'L', 'Dk'))
    >>> axes_named(("seq_len", "batch_size", "_")), axes_named(("b", "_", "_"))
    (('L', 'B', 'D'), None)
    >>> axes_named(("N", "L", "H", "E"))
    ('B', 'L', 'H', 'Dk')
    """
    words = with_batch_named(names)
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
