"""What the references of families 4 to 9 are made of: attention in einsum, and rotation by complex numbers."""

import torch

PAIRS = []


def project(x, linear):
    out = torch.einsum("...i,oi->...o", x, linear.weight)
    return out if linear.bias is None else out + linear.bias


def heads(x, linear, H):
    """B L D -> B H L Dk."""
    out = torch.einsum("bli,hdi->bhld", x, linear.weight.unflatten(0, (H, -1)))
    return out if linear.bias is None else out + linear.bias.unflatten(0, (H, -1))[None, :, None]


def fused(x, linear, H):
    """B L D -> three of B H L Dk, where the weight's rows are all queries, all keys, all values."""
    out = torch.einsum("bli,chdi->cbhld", x, linear.weight.unflatten(0, (3, H, -1)))
    return (out if linear.bias is None else out + linear.bias.unflatten(0, (3, H, -1))[:, None, :, None]).unbind()


def attend(q, k, v, keep=None, bias=None, scale=None):
    """Softmax over the keys that are kept; nothing for a query that keeps none."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = scores.masked_fill(~keep.bool(), -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e300))
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", weights / torch.where(total > 0, total, 1), v)


def merge(context, linear=None):
    """B H L Dk -> B L D, projected."""
    joined = torch.stack([torch.cat(tuple(each), -1) for each in context])
    return joined if linear is None else project(joined, linear)


def visible(Lq, Lk, window=None):
    """Lq Lk: True where a query sees a key; the last query stands at the last key."""
    back = torch.tensor([[i - j for j in range(Lk)] for i in range(Lk - Lq, Lk)])
    return (back >= 0) & (back < (Lk if window is None else window))


def turned(x, positions, layout="half", base=10000.0):
    """... L Dk, each pair of features turned by its token's angle."""
    half = x.shape[-1] // 2
    frequency = base ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * frequency
    real, imaginary = (x[..., :half], x[..., half:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    z = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1) if layout == "half" else torch.stack((z.real, z.imag), -1).flatten(-2)
