"""Compares a signature in the source with what was measured, at the sizes of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from attnshape import axis
from attnshape.annotate.changes import Wanted
from attnshape.annotate.existing import dims
from attnshape.annotate.names import Names
from attnshape.annotate.types import kind
from attnshape.annotate.words import known
from attnshape.errors import AttnshapeError
from attnshape.variables.forms import ANY_NUMBER, Form, ItemsForm, TensorForm

_WIDER = {"Num": {"Float", "Int", "UInt", "Complex"}, "Real": {"Float", "Int", "UInt"}, "Inexact": {"Float", "Complex"}}
_WIDER |= {"Integer": {"Int", "UInt"}, "Shaped": {"Float", "Int", "UInt", "Complex", "Bool"}}


def disagrees(node: cst.CSTNode, names: Names, form: Form, wanted: Wanted) -> bool:
    """Say whether a jaxtyping annotation can't be of what was measured."""
    tensors = list(tensors_in(form))
    said = dims(node, names)
    if len(said) != len(tensors):
        return False
    return any(
        _is_other_kind(name, kind(tensor.dtypes)) or axes_disagree(text.split(), tensor, wanted)
        for (name, text), tensor in zip(said, tensors, strict=True)
    )


def axes_disagree(words: Sequence[str], tensor: TensorForm, wanted: Wanted) -> bool:
    """Say whether the words of a signature, as an author wrote them, can't be a tensor's axes.

    A letter that is no size of the runs may be any size.
    """
    axes = [known(one, wanted.matched) for one in tensor.axes]
    if ANY_NUMBER in axes or any(word == ANY_NUMBER or word.startswith(("*", "#")) for word in words):
        return False
    if len(words) != len(axes):
        return True
    return any(
        _number(word, sizes) not in (None, number)
        for word, text in zip(words, axes, strict=True)
        for sizes in wanted.sizes
        if (number := _number(text or "_", sizes)) is not None
    )


def tensors_in(form: Form) -> Iterator[TensorForm]:
    """Yield the tensors of a form, in order."""
    match form.of:
        case TensorForm():
            yield form.of
        case ItemsForm(items=items):
            for item in items:
                yield from tensors_in(item)


def _is_other_kind(said: str, measured: str) -> bool:
    if measured == "Shaped" or said == measured:
        return False
    if said in _WIDER:
        return measured not in _WIDER[said]
    return said.rstrip("0123456789") != measured  # Float32 is a Float


def _number(word: str, sizes: Mapping[str, int]) -> int | None:
    """Return the number that a word stands for, None where it is an unknown one."""
    plain = word.partition("=")[2] or word
    try:
        return axis.parse(plain).evaluate(sizes)
    except (AttnshapeError, KeyError, ZeroDivisionError):
        return None
