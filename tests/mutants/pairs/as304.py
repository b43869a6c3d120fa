"""AS304: a bias is added after the softmax."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS304", "relative_table", *SIZES),
    ("AS304", "linear_biases", *SIZES),
    ("AS304", "bias_argument", *CROSS),
    ("AS304", "window_table", *SIZES),
]


class RelativeAttention(nn.Module):
    """A number per head and distance, clipped, is added to the scores, which are not scaled."""

    def __init__(self, d_model, heads, reach=3):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.table = nn.Embedding(2 * reach + 1, heads)

    def bias(self, n):
        distance = torch.arange(n) - torch.arange(n)[:, None]
        return self.table(distance.clamp(-self.reach, self.reach) + self.reach).permute(2, 0, 1)

    def weights(self, scores):
        return F.softmax(scores + self.bias(scores.shape[-1]), dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        context = self.weights(torch.matmul(q, k.transpose(3, 2))) @ v
        return x + self.o(context.transpose(1, 2).contiguous().view(b, n, d))


class RelativeAttentionAfter(RelativeAttention):
    def weights(self, scores):
        return F.softmax(scores, dim=-1) + self.bias(scores.shape[-1])  # wrong: AS304 relative_table


def wrong_relative_table(B, H, L, Dk):
    return RelativeAttentionAfter(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_relative_table(B, H, L, Dk):
    return RelativeAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_relative_table(module, x):
    n, r = x.shape[1], module.reach
    rows = [[module.table.weight[max(-r, min(r, j - i)) + r] for j in range(n)] for i in range(n)]
    bias = torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)
    return x + module.o(multihead(module.q(x), module.k(x), module.v(x), module.heads, scale=1.0, bias=bias))


class LinearBiases(nn.Module):
    """Causal; each head subtracts its slope times the distance."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.in_proj, self.out_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, n_head + 1) / n_head))

    def bias(self, n):
        distance = torch.arange(n) - torch.arange(n)[:, None]
        return self.slopes[:, None, None] * distance

    def weights(self, scores):
        n = scores.shape[-1]
        keep = torch.ones(n, n, dtype=torch.bool).tril()
        return (scores + self.bias(n)).masked_fill(~keep, -torch.inf).softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return self.out_proj((self.weights(scores) @ v).transpose(1, 2).flatten(2))


class LinearBiasesAfter(LinearBiases):
    def weights(self, scores):
        n = scores.shape[-1]
        keep = torch.ones(n, n, dtype=torch.bool).tril()
        weights = scores.masked_fill(~keep, -torch.inf).softmax(dim=-1)
        return weights + self.bias(n).tril()  # wrong: AS304 linear_biases


def wrong_linear_biases(B, H, L, Dk):
    return LinearBiasesAfter(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def right_linear_biases(B, H, L, Dk):
    return LinearBiases(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def reference_linear_biases(module, x):
    n = x.shape[1]
    distances = torch.tensor([[j - i for j in range(n)] for i in range(n)])
    bias = torch.stack([slope * distances for slope in module.slopes])
    q, k, v = module.in_proj(x).chunk(3, dim=-1)
    return module.out_proj(multihead(q, k, v, module.n_head, bias=bias, keep=causal(n, n)))


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk); `bias` is (H, Lq, Lk)."""
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5 + bias).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def biased_after(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk); `bias` is (H, Lq, Lk)."""
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(dim=-1)
    weights = weights + bias  # wrong: AS304 bias_argument
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _biased(B, H, Lq, Lk, Dk):
    return (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {
        "bias": torch.randn(H, Lq, Lk)
    }


def wrong_bias_argument(B, H, Lq, Lk, Dk):
    return biased_after, *_biased(B, H, Lq, Lk, Dk), ["bias=bias"]


def right_bias_argument(B, H, Lq, Lk, Dk):
    return biased, *_biased(B, H, Lq, Lk, Dk), ["bias=bias"]


def reference_bias_argument(function, q, k, v, bias):
    return attention(q, k, v, bias=bias)


class WindowAttention(nn.Module):
    """Attention in a window of fixed length, with a learned bias (H, L, L)."""

    def __init__(self, dim, num_heads, length):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.table = nn.Parameter(torch.randn(num_heads, length, length))
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def weights(self, attn):
        return self.softmax(attn + self.table.unsqueeze(0))

    def forward(self, x):
        B_, N, C = x.shape
        h = self.norm(x)
        q, k, v = self.qkv(h).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = self.weights((q * self.scale) @ k.transpose(-2, -1))
        return x + self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


class WindowAttentionAfter(WindowAttention):
    def weights(self, attn):
        return self.softmax(attn) + self.table.unsqueeze(0)  # wrong: AS304 window_table


def wrong_window_table(B, H, L, Dk):
    return WindowAttentionAfter(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_window_table(B, H, L, Dk):
    return WindowAttention(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_window_table(module, x):
    q, k, v = module.qkv(module.norm(x)).chunk(3, dim=-1)
    return x + module.proj(multihead(q, k, v, module.num_heads, bias=module.table))
