"""Arranges masks and biases as (batch, heads, queries, keys), by the sizes of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.options.claimed_axes import ClaimedAxis


@dataclass(frozen=True)
class MaskLayout:
    """Arranges a mask or a bias as (B, H, queries, keys), by the sizes of its axes."""

    batch: int
    heads: int
    queries: int
    keys: int
    others: frozenset[int] = frozenset()
    """The sizes of further axes that are folded with the heads, such as a map's rows where columns attend."""

    def roles(self, shape: tuple[int, ...], claimed: Sequence[ClaimedAxis] = ()) -> list[str] | None:
        """Return the role of each axis: b, h, q, k, or bh for a folded one; None if the sizes are ambiguous.

        Where the axes are claimed, their roles are those that the user wrote. But a last axis of queries, without one
        of keys, holds the keys where queries and keys are the same tokens, as in a decoder's self-attention. An axis as
        long as the queries is ambiguous where attention has another axis of that size.
        """
        square = self.queries == self.keys
        if claimed and len(claimed) == len(shape):
            written = [axis.role for axis in claimed]
            if square and written[-1] == "q" and "k" not in written:
                written[-1] = "k"
            return [role if size > 1 else "" for role, size in zip(written, shape, strict=True)]
        roles: list[str] = []
        # where two sizes are equal, the first of these roles is meant
        sizes = {"q": self.queries, "b": self.batch, "h": self.heads, "bh": self.batch * self.heads}
        for size in shape:
            if size == 1:
                roles.append("")
            elif size == self.keys and (not square or shape.count(size) == 1 or "q" in roles):
                roles.append("k")
            elif (role := next((role for role, number in sizes.items() if number == size), None)) is not None:
                roles.append(role)
            else:
                return None
        if "q" in roles and self.queries in self.others:
            return None
        named = "".join(roles)
        return roles if len(set(named)) == len(named) else None

    def lay_out(self, value: Tensor, roles: Sequence[str] | None) -> Tensor | None:
        """Return a tensor as (B, H, queries, keys), given its axes' roles; None if the sizes don't fit."""
        if roles is None:
            return None
        present = [role for role in roles if role]
        value = value.reshape([size for size, role in zip(value.shape, roles, strict=True) if role])
        order = sorted(present, key=("b", "bh", "hb", "h", "q", "k").index)
        value = value.permute([present.index(role) for role in order])
        if ("bh" in order or "hb" in order) and value.shape[0] != self.batch * self.heads:
            return None
        if "bh" in order:
            value = value.reshape(self.batch, self.heads, *value.shape[1:])
        elif "hb" in order:
            value = value.reshape(self.heads, self.batch, *value.shape[1:]).transpose(0, 1)
        for place, role in enumerate("bhqk"):
            if role not in "".join(order):
                value = value.unsqueeze(place)
        sizes = (self.batch, self.heads, self.queries, self.keys)
        fits = all(have in (1, want) for have, want in zip(value.shape, sizes, strict=True))
        return value.expand(sizes) if fits else None

    def misordered(self, value: Tensor, batch_outside: bool, of_heads: bool = False) -> Tensor:
        """Return a mask whose batch elements, or a bias whose heads, are assigned in the wrong order of both."""
        b, h = torch.arange(self.batch)[:, None], torch.arange(self.heads)[None, :]
        row, count = (b * self.heads + h, self.batch) if batch_outside else (h * self.batch + b, self.heads)
        wrong = row % count if batch_outside != of_heads else row // count
        zero = torch.zeros_like(wrong)
        return value[zero, wrong] if of_heads else value[wrong, zero]


def swap_queries_and_keys(roles: Sequence[str]) -> list[str]:
    """Return the roles of axes with queries and keys exchanged."""
    return [{"q": "k", "k": "q"}.get(role, role) for role in roles]


def fold_otherwise(roles: Sequence[str]) -> list[str]:
    """Return the roles of axes with batch and heads folded in the other order."""
    return [{"bh": "hb", "hb": "bh"}.get(role, role) for role in roles]
