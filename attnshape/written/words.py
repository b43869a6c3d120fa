"""Names that people give to axes, by what these are; what is none of them may still be an axis's name."""

from __future__ import annotations

import re
from typing import Literal

Meaning = Literal["batch", "heads", "length", "head width", "width"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MEANINGS: dict[Meaning, tuple[str, ...]] = {
    "batch": _words("B b bs bsz bz batch batch_size n_batch nbatch num_batch batches"),
    "heads": _words("nh nH n_h n_head n_heads nhead nheads num_heads num_head heads head H h"),
    "length": _words(
        """T t L seq seqlen seq_len seq_length sequence sequence_length len length tokens n_tokens num_tokens time
        timesteps n_ctx ctx q_len query_len n_q T_q Tq L_q Lq tgt_len target_len queries n_queries num_queries k_len
        kv_len n_k key_len T_k Tk L_k Lk src_len source_len keys n_keys num_keys n_Q n_K"""
    ),
    "head width": _words(
        """hs hd dh d_h d_k D_k dk Dk d_head d_heads dim_head head_dim head_size head_dims Dh D_h d_v D_v Dv dv"""
    ),
    "width": _words(
        """C D d_model D_model dim dims embed embed_dim emb_dim embedding n_embd n_embed embd hidden hidden_size
        hidden_dim hid_dim channels features feat model dmodel"""
    ),
}
"""No word stands for two meanings."""

_OTHER = _words(
    """window window_size n_windows num_windows groups group n_group n_groups classes vocab vocab_size patches n_patches
    num_patches layers n_layers chunks n_chunks chunk rank past past_len total_len memory context experts height depth
    blocks block block_size query key value target source words frames inner_dim mem_len size"""
)

_BY_WORD: dict[str, Meaning] = {word: meaning for meaning, words in MEANINGS.items() for word in words}

_TYPES = _words(
    """tensor tensors float int bool str none optional default list tuple dict any callable true false module array
    floattensor longtensor booltensor byte long double half ndarray union self return returns"""
)


_ENGLISH = _words("of in to is at on by or as if it we be no so an do up us my vs eg ie the and for not all are")


def meaning(name: str) -> Meaning | None:
    """Return what an axis of that name most likely is, None where it may be anything.

    >>> meaning("nh"), meaning("batch size"), meaning("N")
    ('heads', 'batch', None)
    """
    plain = normal(name)
    return _BY_WORD.get(plain) or _BY_WORD.get(plain.lower() if len(plain) > 2 else plain)


def is_axis_word(name: str) -> bool:
    """Say whether the name is commonly given to an axis: `batch`, `seq_len`, `n_windows`.

    >>> is_axis_word("seq len"), is_axis_word("faster")
    (True, False)
    """
    return meaning(name) is not None or normal(name).lower() in _OTHER


def is_type(name: str) -> bool:
    """Say whether the word is a type's or of the language, as in `(Tensor, optional)`: it names no axis."""
    return name.lower().rpartition(".")[2] in _TYPES


def is_english(name: str) -> bool:
    """Say whether a short word is English rather than a letter: `(of T)`."""
    return name in _ENGLISH


def normal(name: str) -> str:
    """Return the name with one spelling of its gaps: `batch size` and `batch-size` are `batch_size`."""
    return re.sub(r"[\s-]+", "_", name.strip())
