# After OpenAI's CLIP: QKV pooling of a feature map (NCHW -> NC)
import torch
import torch.nn.functional as F
from torch import nn


class AttentionPool2d(nn.Module):
    def __init__(self, height: int, width: int, embed_dim: int, num_heads: int, output_dim: int = None):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(height * width + 1, embed_dim) / embed_dim ** 0.5)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.c_proj = nn.Linear(embed_dim, output_dim or embed_dim)
        self.num_heads = num_heads

    def split_heads(self, t):
        L, N, C = t.shape
        nh = self.num_heads
        # (L, N, C) -> (N, nh, L, C/nh)
        return t.view(L, N, nh, C // nh).permute(1, 2, 0, 3)

    def forward(self, x):
        N, C, H, W = x.shape
        nh = self.num_heads
        x = x.flatten(start_dim=2).permute(2, 0, 1)  # NCHW -> (H*W)NC
        # x is now (H*W, N, C)
        x = torch.cat([x.mean(dim=0, keepdim=True), x], dim=0)  # (H*W+1, N, C)
        x = x + self.positional_embedding[:, None, :].to(x.dtype)  # (H*W+1, 1, C) is added
        q = self.split_heads(self.q_proj(x[:1]))  # (N, nh, 1, C/nh)
        k = self.split_heads(self.k_proj(x))  # (N, nh, H*W+1, C/nh)
        v = self.split_heads(self.v_proj(x))
        # flash attention is used if possible (see the torch docs [1])
        y = F.scaled_dot_product_attention(q, k, v)  # (N, nh, 1, C/nh)
        y = y.permute(2, 0, 1, 3).flatten(2)  # (1, N, C)
        y = self.c_proj(y)
        # drop the token axis, i.e. index (0)
        y = y.squeeze(0)
        # (no normalisation here, see encode_image)
        return y
