"""The alternative without attnshape: multi-head attention in plain torch that prints its shapes."""

import math

import torch
from torch import Tensor, nn


class MultiHead(nn.Module):
    """Multi-head self-attention that prints the shape of every intermediate tensor."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and print."""
        B, L, D = x.shape
        query = self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        key = self.Wk(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        value = self.Wv(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        weights = scores.softmax(dim=-1)
        context = weights @ value
        merged = context.transpose(1, 2).contiguous().view(B, L, D)
        output = self.Wo(merged)
        for name, tensor in locals().items():
            if isinstance(tensor, Tensor):
                print(name, tuple(tensor.shape), tensor.stride())
        return output


if __name__ == "__main__":
    MultiHead(d_model=512, n_heads=8).eval()(torch.randn(2, 10, 512))
