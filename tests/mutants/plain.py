"""Plain attention functions, from which the right versions of the cases are built."""

import torch
from torch import Tensor


def split(x: Tensor, heads: int) -> Tensor:
    """Split (B, L, H*Dk) into (B, H, L, Dk)."""
    return torch.stack(x.chunk(heads, dim=-1), dim=1)


def join(x: Tensor) -> Tensor:
    """Merge (B, H, L, Dk) into (B, L, H*Dk)."""
    return torch.cat(x.unbind(1), dim=-1)


def softmax(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """Attend with (…, Lq, Dk), (…, Lk, Dk) and (…, Lk, Dv); return (…, Lq, Dv)."""
    scores = torch.einsum("...id,...jd->...ij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = torch.where(keep, scores, -torch.inf)
    return torch.einsum("...ij,...jd->...id", softmax(scores), v)


def multihead(q: Tensor, k: Tensor, v: Tensor, heads: int, **options: Tensor | float | None) -> Tensor:
    """Attend per head, all of (B, L, H*Dk)."""
    return join(attention(split(q, heads), split(k, heads), split(v, heads), **options))


def causal(queries: int, keys: int) -> Tensor:
    """Return a mask, true for keys that are no later than the query; the last query sees all keys."""
    return torch.tensor([[j <= i + keys - queries for j in range(keys)] for i in range(queries)])
