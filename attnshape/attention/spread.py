"""Lays a mask or a bias out along batch, heads, queries and keys, by the sizes of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """The sizes to lay out to."""

    batch: int
    heads: int
    queries: int
    keys: int

    def roles(self, shape: tuple[int, ...]) -> list[str] | None:
        """Return what each axis stands for: b, h, q, k, or bh for a folded one; None where that can't be told."""
        roles: list[str] = []
        square = self.queries == self.keys
        lengths = sum(size == self.keys for size in shape)
        for size in shape:
            if size == 1:
                roles.append("")
            elif size == self.keys and (not square or lengths == 1 or "q" in roles):
                roles.append("k")
            elif size == self.queries:
                roles.append("q")
            elif size == self.batch:
                roles.append("b")
            elif size == self.heads:
                roles.append("h")
            elif size == self.batch * self.heads:
                roles.append("bh")
            else:
                return None
        named = [role for role in roles if role]
        twice = len(set(named)) < len(named) or ("bh" in named and {"b", "h"} & set(named))
        return None if twice else roles

    def laid_out(self, value: Tensor, roles: Sequence[str] | None) -> Tensor | None:
        """Return a tensor as (B, H, queries, keys), given what its axes stand for; None where its sizes don't fit."""
        if roles is None:
            return None
        present = [role for role in roles if role]
        value = value.reshape([size for size, role in zip(value.shape, roles, strict=True) if role])
        order = [role for role in ("b", "bh", "h", "q", "k") if role in present]
        value = value.permute([present.index(role) for role in order])
        if "bh" in order:
            value = value.reshape(self.batch, self.heads, *value.shape[1:])
            order = ["b", "h", *order[1:]]
        for place, role in enumerate(("b", "h", "q", "k")):
            if role not in order:
                value = value.unsqueeze(place)
        sizes = (self.batch, self.heads, self.queries, self.keys)
        fits = all(have in (1, want) for have, want in zip(value.shape, sizes, strict=True))
        return value.expand(sizes) if fits else None

    def misordered(self, value: Tensor, batch_outside: bool) -> Tensor:
        """Return what the batch becomes where it was repeated as if heads were outside, or inside where they are."""
        b, h = torch.arange(self.batch)[:, None], torch.arange(self.heads)[None, :]
        wrong = (b * self.heads + h) % self.batch if batch_outside else (h * self.batch + b) // self.heads
        return value[wrong, torch.zeros_like(wrong)]

    def heads_misordered(self, value: Tensor, batch_outside: bool) -> Tensor:
        """Return what the heads become where they were repeated as if the batch were inside, or outside where it is."""
        b, h = torch.arange(self.batch)[:, None], torch.arange(self.heads)[None, :]
        wrong = (b * self.heads + h) // self.batch if batch_outside else (h * self.batch + b) % self.heads
        return value[torch.zeros_like(wrong), wrong]
