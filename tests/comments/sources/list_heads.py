# Attention "by hand": a list comprehension over the heads and weights as bare parameters
import torch
from torch import nn


class LoopAttention(nn.Module):
    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_head
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.02)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.02)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.02)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * 0.02)

    def one_head(self, x, i):
        # batch, seq, d_model
        batch, seq, d_model = x.shape
        d_head = self.d_head
        q = x @ self.W_Q[i]  # batch, seq, d_head
        k = x @ self.W_K[i]
        # (batch, seq, d_model) @ (d_model, d_head) -> (batch, seq, d_head)
        v = x @ self.W_V[i]
        s = q @ k.mT / d_head ** 0.5  # batch, seq, seq
        # upper triangle (k=1), i.e. j > i
        s = s.masked_fill(torch.ones_like(s).triu(1).bool(), -1e9)
        a = s.softmax(-1)
        return a @ v  # batch, seq, d_head

    def forward(self, x):
        batch, seq, d_model = x.shape
        n_heads, d_head = self.n_heads, self.d_head
        heads = [self.one_head(x, i) for i in range(self.n_heads)]  # [1, 2, 3] in any order
        z = torch.stack(heads, dim=2)  # batch, seq, n_heads, d_head
        # W_O: n_heads, d_head, d_model
        out = torch.einsum("bshe,hed->bsd", z, self.W_O)  # batch, seq, d_model
        # note (a, b) pairs are summed, x + (x @ w) as in the paper
        # one could fold W_V and W_O into a single matrix (the OV circuit),
        # but not here
        return x + out  # TODO (me): layer norm
