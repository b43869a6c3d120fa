"""Functional attention with numpy docstrings; any number of leading axes."""
import math

import torch


def softmax_(x, dim=-1):
    """Stable softmax, in place (do not use while training)."""
    x -= x.amax(dim=dim, keepdim=True)
    x.exp_()  # now in (0, 1]
    x /= x.sum(dim=dim, keepdim=True)
    return x


def apply_mask_(logits, mask):
    """Masks in place.

    Parameters
    ----------
    logits : torch.Tensor of shape (..., T, S)
    mask : torch.BoolTensor of shape (T, S)
    """
    T, S = mask.shape
    if mask.all():
        return logits  # nothing to do (fast path)
    logits[..., ~mask] = -math.inf  # (T, S) boolean index
    return logits


def sdpa(q, k, v, mask=None, return_weights=False):
    """Scaled dot product attention.

    Parameters
    ----------
    q : torch.Tensor
        Queries, shape (B, nh, T, hs).
    k : torch.Tensor
        Keys, shape (B, nh, S, hs).
    v : torch.Tensor
        Values, shape (B, nh, S, vs).
    mask : torch.Tensor, optional
        True to keep, shape (T, S).

    Returns
    -------
    torch.Tensor
        The mixture, shape (B, nh, T, vs).
    """
    B, nh, T, hs = q.shape
    S, vs = v.shape[-2:]
    scale = 1 / math.sqrt(hs)  # (or 1 / hs with muP)
    logits = q @ k.transpose(-2, -1)  # (..., T, S)
    logits = logits * scale  # softmax(QK^T / sqrt(d_k))
    if mask is not None:
        logits = apply_mask_(logits, mask)
    w = softmax_(logits)  # (B, nh, T, S), rows in [0, 1]
    if return_weights:
        return w
    return w @ v  # (..., T, vs)


def case(B, H, Lq, Lk, Dk, Dv):
    mask = torch.ones(Lq, Lk, dtype=torch.bool).tril(2)
    q = torch.randn(B, H, Lq, Dk)
    return sdpa, (q, torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dv), mask)
