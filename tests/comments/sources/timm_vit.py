""" Vision Transformer attention + block (a hack on timm by Ross Wightman)
"""
import torch
import torch.nn as nn


class PatchEmbed(nn.Module):
    """ 2D Image to Patch Embedding """

    def __init__(self, patch_size=4, in_chans=3, embed_dim=768):
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        # x: (B, 3, H, W)
        B, _, H, W = x.shape
        p = self.patch_size
        x = self.proj(x)  # (B, D, H/p, W/p)
        return x.flatten(2).transpose(1, 2)  # BCHW -> BNC


class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0., proj_drop=0.):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)  # could be a 1 x 1 conv
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        num_heads = self.num_heads
        qkv = self.qkv(x).reshape(B, N, 3, num_heads, C // num_heads).permute(2, 0, 3, 1, 4)  # [3, B, num_heads, N, C//num_heads]
        q, k, v = qkv.unbind(0)  # make torchscript happy (cannot use tensor as tuple)

        attn = (q @ k.transpose(-2, -1)) * self.scale  # [B, num_heads, N, N]
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)  # [B, num_heads, N, C//num_heads] => [B, N, C]
        x = self.proj(x)
        x = self.proj_drop(x)
        return x


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        B, N, C = x.shape
        x = x + self.attn(self.norm1(x))  # x + (x @ w)
        x = x + self.mlp(self.norm2(x))  # [B, N, C]
        return x


class TinyViT(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.patch_embed = PatchEmbed(embed_dim=dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.blocks = nn.ModuleList([Block(dim, num_heads) for _ in range(2)])

    def forward(self, x):
        x = self.patch_embed(x)
        B, N, C = x.shape
        # [CLS] token
        cls = self.cls_token.expand(B, -1, -1)  # [B, 1, C]
        x = torch.cat((cls, x), dim=1)  # [B, N+1, C]
        for blk in self.blocks:
            x = blk(x)
        return x[:, 0]  # [B, C]


def case(B, H, Dk, Lq, Lk):
    return TinyViT(H * Dk, H), (torch.randn(B, 3, 4 * Lq, 4 * Lk),)
