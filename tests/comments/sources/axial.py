"""Axial attention on images (Ho et al., 2019): rows first, then columns."""
import torch
from torch import nn


class SeqAttention(nn.Module):
    """Plain attention over the last but one axis; leading axes are kept."""

    def __init__(self, C, nh):
        super().__init__()
        self.nh = nh
        self.to_qkv = nn.Linear(C, 3 * C, bias=False)
        self.to_out = nn.Linear(C, C)

    def heads(self, t):
        # t: (..., T, C)
        T, C = t.shape[-2:]
        nh = self.nh
        t = t.unflatten(-1, (nh, C // nh))  # (..., T, nh, C/nh)
        return t.transpose(-3, -2)  # (..., nh, T, C/nh)

    def forward(self, x):
        T, C = x.shape[-2:]
        nh = self.nh
        q, k, v = map(self.heads, self.to_qkv(x).chunk(3, dim=-1))  # q, k, v each (..., nh, T, C/nh)
        a = (q @ k.mT) * (C // nh) ** -0.5  # (..., nh, T, T)
        a = a.softmax(dim=-1)  # sums to 1 (rows)
        o = (a @ v).transpose(-3, -2)  # (..., T, nh, C/nh)
        o = o.flatten(-2)  # (..., T, C)
        return self.to_out(o)


class AxialBlock(nn.Module):
    def __init__(self, C, nh):
        super().__init__()
        self.row = SeqAttention(C, nh)
        self.col = SeqAttention(C, nh)
        self.norm = nn.LayerNorm(C)

    def forward(self, img):
        # img: torch.Size([B, R, S, C])
        B, R, S, C = img.shape
        y = img + self.row(self.norm(img))  # torch.Size([B, R, S, C])
        z = y.transpose(1, 2)  # torch.Size([B, S, R, C])
        # the columns now; O(R^2) rather than O((R*S)^2)
        z = self.col(self.norm(z))
        z = z.transpose(1, 2)  # torch.Size([B, R, S, C])
        out = y + z  # [R, S] grid, see fig. 3 (b)
        # pooled = out.mean(dim=(1, 2))
        return out
