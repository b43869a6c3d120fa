"""A whole model: its layers are equal, and shown once.

Trace it:

    attnshape trace examples/language_model.py:LanguageModel --init "V, D, H" --input "ids: int[V] B L"
"""

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, L, D = x.shape
        qkv = self.Wqkv(x).view(B, L, 3, self.H, D // self.H)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)

        scores = query @ key.mT * (D // self.H) ** -0.5
        weights = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).flatten(start_dim=2)
        return self.Wo(merged)


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = SelfAttention(d_model, n_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        attended = x + self.attn(self.norm1(x), mask)
        hidden = self.up(self.norm2(attended)).relu()
        return attended + self.down(hidden)


class LanguageModel(nn.Module):
    """A decoder of equal layers."""

    def __init__(self, vocabulary: int, d_model: int, n_heads: int, n_layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d_model)
        self.layers = nn.ModuleList([Layer(d_model, n_heads) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        L = ids.shape[1]
        mask = torch.ones(L, L, dtype=torch.bool, device=ids.device).triu(1)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


if __name__ == "__main__":
    model = LanguageModel(vocabulary=50, d_model=64, n_heads=4)
    print(tuple(model(torch.randint(50, (2, 10))).shape))
