"""Other orders of the axes of inputs: sequences first, heads behind tokens, and two lengths in the place of one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attnshape.proposals import conventions


def with_heads_behind_tokens(tensors: Mapping[str, str]) -> dict[str, str]:
    """Return descriptions with the axes of the heads and of the sequence exchanged.

    >>> with_heads_behind_tokens({"query": "B H Lq Dk", "key": "B H Lk Dk"})
    {'query': 'B Lq H Dk', 'key': 'B Lk H Dk'}
    """
    return {name: re.sub(r"^B H (L\w*) ", r"B \1 H ", text) for name, text in tensors.items()}


def with_sequence_first(tensors: Mapping[str, str]) -> dict[str, str]:
    """Return descriptions with the axes of the batch and of the sequence exchanged.

    >>> with_sequence_first({"query": "B Lq D", "ids": "int[V] B L"})
    {'query': 'Lq B D', 'ids': 'int[V] L B'}
    """
    return {name: re.sub(r"^(\w+\[\w+\] )?B (L\w*)\b", r"\1\2 B", text) for name, text in tensors.items()}


def with_two_lengths(tensors: Mapping[str, str]) -> dict[str, str]:
    """Return descriptions in which what keys come from has a length of its own, where there are others.

    >>> with_two_lengths({"tgt": "L B D", "memory": "L B D"})
    {'tgt': 'Lq B D', 'memory': 'Lk B D'}
    """
    memory = [name for name in tensors if conventions.is_memory(name)]
    if not memory or len(memory) == len(tensors):
        return dict(tensors)
    return {name: re.sub(r"\bL\b", "Lk" if name in memory else "Lq", text) for name, text in tensors.items()}
