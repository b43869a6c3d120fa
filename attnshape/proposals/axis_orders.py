"""Other orders of the axes of inputs: sequences first, heads behind tokens, and two lengths in the place of one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

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


def memory_among(names: Iterable[str], *, of_two: bool = False) -> list[str]:
    """Return which of several tensors keys and values come from, by their names; none, if that were all.

    Beside a query it is the only other tensor, and the second one `of_two` where nothing else is known.

    >>> memory_among(["tgt", "memory"]), memory_among(["bank", "q"]), memory_among(["k", "v"])
    (['memory'], ['bank'], [])
    >>> memory_among(["x", "y"]), memory_among(["x", "y"], of_two=True)
    ([], ['y'])
    """
    tensors = list(names)
    memory = [name for name in tensors if conventions.is_memory(name)]
    if memory or len(tensors) != 2:
        return memory if len(memory) < len(tensors) else []
    others = [name for name in tensors if not conventions.is_query(name)]
    return others if len(others) == 1 else tensors[1:] if of_two else []


def with_two_lengths(tensors: Mapping[str, str], memory: Collection[str] = ()) -> dict[str, str]:
    """Return descriptions in which what keys come from has a length of its own, where there are others.

    That is the `memory`, or the tensors that have such names.

    >>> with_two_lengths({"tgt": "L B D", "memory": "L B D"})
    {'tgt': 'Lq B D', 'memory': 'Lk B D'}
    """
    memory = memory or memory_among(tensors)
    if not memory:
        return dict(tensors)
    return {name: re.sub(r"\bL\b", "Lk" if name in memory else "Lq", text) for name, text in tensors.items()}
