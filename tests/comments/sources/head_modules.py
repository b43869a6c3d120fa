import torch
import torch.nn as nn
from torch.nn import functional as F

MAX_LEN = 1000
dropout = 0.2  # (not tuned)


class Head(nn.Module):
    """one head of self-attention (small, slow, clear)"""

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(MAX_LEN, MAX_LEN)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        # input of size (batch, time-step, channels)
        # output of size (batch, time-step, head size)
        B, T, C = x.shape
        k = self.key(x)    # (B, T, hs)
        q = self.query(x)  # (B, T, hs)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        # perform the weighted aggregation of the values
        v = self.value(x)  # (B, T, hs)
        out = wei @ v      # (B, T, T) @ (B, T, hs) -> (B, T, hs)
        return out


class MultiHeadAttention(nn.Module):
    """multiple heads of self-attention in parallel: [h1, h2, ..., hn]"""

    def __init__(self, n_embd, head_size, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.num_heads = num_heads
        self.head_size = head_size
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        num_heads, head_size = self.num_heads, self.head_size
        outs = [h(x) for h in self.heads]  # num_heads times (B, T, head_size)
        # (B, T, num_heads*head_size)
        out = torch.cat(outs, dim=-1)  # (B, T, [h1, h1, h2, h2])
        out = self.dropout(self.proj(out))  # B, T, C
        return out
