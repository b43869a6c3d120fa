"""The cores of a run: each softmax with the product that makes its scores and the one that its weights go into."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.attention.flow import Flow
from attnshape.attention.products import Product, product_at
from attnshape.attention.softmax import Softmax, softmaxes
from attnshape.replaying.replay import Address, Event, Source

FUSED = "scaled_dot_product_attention"
_FAR = 40
"""Calls between a product and the softmax, beyond which they aren't taken for parts of one attention."""


@dataclass(frozen=True)
class Core:
    """One attention whose scores can be seen."""

    scores: Product
    softmax: Softmax
    value: Product
    weights_place: int
    """Which operand of the value product the weights are."""
    more_scores: tuple[Product, ...] = ()
    """Further products of what depends on the inputs that are added to the scores."""
    positional: tuple[Product, ...] = ()
    """Products of queries or keys with what doesn't, such as positions, that are added to the scores."""

    @property
    def context(self) -> Address:
        """Where the weighted values are."""
        return self.value.address

    @property
    def weights(self) -> Tensor:
        """The weights as they go into the value product."""
        return self.value.given(self.weights_place)

    @property
    def values_place(self) -> int:
        """Which operand of the value product the values are."""
        return self.value.other(self.weights_place)

    @property
    def key_axes(self) -> tuple[int, ...]:
        """The axes of the weights, as they go into the value product, that this sums over."""
        return self.value.contracted(self.weights_place)


@dataclass(frozen=True)
class FusedCore:
    """One attention of torch's that never shows its scores."""

    event: Event

    @cached_property
    def arguments(self) -> dict[str, object]:
        """What it was called with, by parameter."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given: dict[str, object] = dict(zip(names, self.event.args, strict=False))
        given |= self.event.keywords
        values = {id(operand): self.event.given[place] for place, operand in enumerate(self.event.operands)}
        return {name: values.get(id(value), value) for name, value in given.items()}

    def tensor(self, name: str) -> Tensor:
        """Return an argument that is a tensor."""
        value = self.arguments[name]
        assert isinstance(value, Tensor)
        return value

    def sources(self, name: str) -> tuple[Source, ...]:
        """Return what made an argument that is a tensor."""
        names = ("query", "key", "value", "attn_mask")
        value = self.event.keywords.get(name)
        if value is None and names.index(name) < len(self.event.args):
            value = self.event.args[names.index(name)]
        return next((self.event.sources[at] for at, one in enumerate(self.event.operands) if one is value), ())

    @property
    def context(self) -> Address:
        """Where the weighted values are."""
        return Address(self.event.order)

    @cached_property
    def scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        scale = self.arguments.get("scale")
        return float(scale) if isinstance(scale, (int, float)) else self.tensor("query").shape[-1] ** -0.5

    @property
    def hides_its_mask(self) -> bool:
        """Whether the mask is of a kind that has no numbers of its own, as torch.nn.attention.bias has."""
        mask = self.arguments.get("attn_mask")
        return isinstance(mask, Tensor) and type(mask) not in (Tensor, torch.nn.Parameter)

    @cached_property
    def added(self) -> Tensor:
        """What is added to the scores: 0, or minus infinity where a key is hidden."""
        query, key = self.tensor("query"), self.tensor("key")
        shape = (*query.shape[:-1], key.shape[-2])
        added = torch.zeros(shape, dtype=torch.float64)
        mask = self.arguments.get("attn_mask")
        if isinstance(mask, Tensor):
            hidden = (
                torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
                if (mask.dtype == torch.bool)
                else mask.double()
            )
            added = added + hidden
        if self.arguments.get("is_causal"):
            visible = torch.ones(shape[-2:], dtype=torch.bool).tril()
            added = added.masked_fill(~visible, -torch.inf)
        return added


def cores(flow: Flow) -> list[Core]:
    """Return every attention of a run whose scores, weights and values can be told apart."""
    found = []
    for softmax in softmaxes(flow):
        made = _scores(softmax, flow)
        value = _value(softmax, flow)
        if made is not None and value is not None:
            found.append(Core(made[0][0], softmax, *value, tuple(made[0][1:]), tuple(made[1])))
    return found


def fused_cores(flow: Flow) -> list[FusedCore]:
    """Return every fused attention of a run."""
    return [FusedCore(event) for event in flow.run.events if event.name == FUSED and len(event.operands) >= 3]


def product(event: Event, flow: Flow) -> Product | None:
    """Return the product that a call is, or begins."""
    return product_at(event, lambda address: [after for after, _ in flow.consumers.get(address, [])])


def _scores(softmax: Softmax, flow: Flow) -> tuple[list[Product], list[Product]] | None:
    """Return the products that make the scores: those of what depends on the inputs by both operands, and by one."""
    both: list[Product] = []
    one: list[Product] = []
    hidden: set[int] = set()
    for event in flow.upstream(softmax.sources):
        if softmax.event.order - event.order > _FAR and both:
            break
        if event.order in hidden:
            continue
        found = product(event, flow)
        if found is None or event.name == "linear":
            continue
        # what it was made from has products of its own, which are no scores
        hidden |= {
            before.order for place in (found.left, found.right) for before in flow.upstream(found.sources(place))
        }
        data = [flow.carries_data(found.sources(place)) for place in (found.left, found.right)]
        if all(data):
            both.append(found)
        elif any(data):
            one.append(found)
            mixes = [p for p, d in zip((found.left, found.right), data, strict=True) if d]
            # heads that talk: a product of scores and a parameter, behind which the scores are
            hidden -= {before.order for before in flow.upstream(found.sources(mixes[0]))}
    if both:
        return both[::-1], one
    return (one[-1:], one[:-1]) if one else None


def _value(softmax: Softmax, flow: Flow) -> tuple[Product, int] | None:
    """Return the product that the weights go into, and as which operand."""
    behind = flow.behind(softmax.address)
    reached: set[Address] = {softmax.address}
    for event in flow.run.events[softmax.event.order :]:
        places = [at for at, sources in enumerate(event.sources) if any(s in reached for s in sources)]
        if not places:
            continue
        found = product(event, flow)
        if found is not None and event.name != "linear":
            for place in (found.left, found.right):
                other = found.sources(found.other(place))
                if place in places and not any(s in behind for s in other) and flow.carries_data(other):
                    return found, place
        reached.update(event.addresses)
    return None
