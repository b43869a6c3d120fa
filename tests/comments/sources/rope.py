import torch
import torch.nn as nn
import torch.nn.functional as F

# RoFormer (Su et al., 2021)


def precompute_freqs(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))  # [dim/2]
    t = torch.arange(end)  # [end]
    freqs = torch.outer(t, freqs)  # [end, dim/2]
    return torch.cat([freqs, freqs], dim=-1)  # [end, dim]


def rotate_half(x):
    """Rotates half the hidden dims of the input: (x1, x2) -> (-x2, x1)."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x, freqs):
    # x: [B, T, nh, hs], freqs: [T, hs]
    B, T, nh, hs = x.shape
    freqs = freqs[None, :, None, :]  # [1, T, 1, hs]
    return x * freqs.cos() + rotate_half(x) * freqs.sin()  # [B, T, nh, hs]


class RotaryAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        nh, hs = self.n_heads, self.d_head
        freqs = precompute_freqs(hs, T)  # could be cached (a buffer)
        q, k, v = self.qkv(x).view(B, T, 3, nh, hs).unbind(dim=2)  # q, k, v each [B, T, nh, hs]
        q, k = apply_rotary(q, freqs), apply_rotary(k, freqs)
        # dims (0, 2, 1, 3)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        # now torch.Size([B, nh, T, hs])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # torch.Size([B, nh, T, hs])
        y = y.transpose(1, 2).reshape(B, T, C)  # torch.Size([B, T, C])
        return self.out(y)
