"""Steps whose place in the source is looked up only if it turns out to be needed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnshape.tracing.call import Call
from attnshape.tracing.places import Moment


@dataclass(slots=True)
class Waiting:
    """A composite's first inner step, which is looked up in the library's source only if another follows.

    Most composites pass on what their only inner step returns, and the source of torch's functions takes a while to
    parse. The tensors are held until the next call at most.
    """

    position: int
    moment: Moment
    call: Call
    result: object = None
    written: Tensor | None = None
    over: bool = True
    """Whether there is a result yet; a composite's comes later."""
