"""
Lecture notes: a single head, step by step.

The bigram averaging in three versions, and then self-attention (lecture 7, part 2).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
block_size = 1024


class Head(nn.Module):
    """ one head of self-attention """

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape  # B,T,C
        k = self.key(x)    # (B,T,hs)
        q = self.query(x)  # (B,T,hs)
        # compute attention scores ("affinities"), O(T^2)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5  # (B,T,hs) @ (B,hs,T) -> (B,T,T)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))  # (B, T, T)
        wei = F.softmax(wei, dim=-1)  # normalise (each row: 1, then 1/2, 1/2 ...)
        # version 3: use Softmax
        # xbow = wei @ x   (B, T, T) @ (B, T, C) ----> commented out (too slow)
        v = self.value(x)
        # B,T,hs
        # perform the weighted aggregation of the values
        out = wei @ v  # (B,T,T) @ (B,T,hs) -> (B,T,hs)
        # next: several heads, then concat ([h1, h2], see part 3)
        # TODO (me): dropout
        return out
