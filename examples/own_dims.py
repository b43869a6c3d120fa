r"""Size symbols of the author's own: T tokens, nh heads of hs features, C = nh*hs channels.

Trace it:

    attnshape trace examples/own_dims.py:Attention --dim T=10 --dim nh=4 --dim hs=16 --dim "C=nh*hs" \
        --init "C, nh" --input "x: B T C"
"""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention, with the axes named in comments as many authors do."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv_proj = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.out_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        nh = self.n_head
        hs = C // nh
        q_flat, k_flat, v_flat = self.qkv_proj(x).split(C, dim=-1)  # (B, T, C) each
        q = q_flat.view(B, T, nh, hs).transpose(1, 2)  # (B, nh, T, hs)
        k = k_flat.view(B, T, nh, hs).transpose(1, 2)  # (B, nh, T, hs)
        v = v_flat.view(B, T, nh, hs).transpose(1, 2)  # (B, nh, T, hs)

        scaled = (q @ k.transpose(-2, -1)) * hs**-0.5  # (B, nh, T, T)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(diagonal=1)  # (T, T)
        att = scaled.masked_fill(future, float("-inf")).softmax(dim=-1)  # (B, nh, T, T)
        y = att @ v  # (B, nh, T, hs)
        joined = y.transpose(1, 2).contiguous().view(B, T, C)  # (B, T, C)
        return self.out_proj(joined)


if __name__ == "__main__":
    attention = Attention(n_embd=64, n_head=4)
    print(tuple(attention(torch.randn(2, 10, 64)).shape))
