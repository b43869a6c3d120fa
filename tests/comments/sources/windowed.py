# Swin-like windows, in one dimension (cf. Liu et al., 2021)
import torch
import torch.nn as nn


def window_partition(x, window_size):
    """
    Args:
        x: (B, T, C)
        window_size (int): window size

    Returns:
        windows: (num_windows*B, window_size, C)
    """
    B, T, C = x.shape
    num_windows = T // window_size
    x = x.view(B, num_windows, window_size, C)  # (B, T/window_size, window_size, C)
    return x.reshape(-1, window_size, C)


def window_reverse(windows, window_size, T):
    # windows: (num_windows*B, window_size, C) -> (B, T, C)
    num_windows = T // window_size
    B = windows.shape[0] // num_windows
    C = windows.shape[-1]
    return windows.view(B, num_windows, window_size, -1).reshape(B, T, C)  # [0, 1) no copy needed


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size = window_size  # W
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.bias_table = nn.Parameter(torch.zeros(2 * window_size - 1, num_heads))  # 2*W-1, nH
        coords = torch.arange(window_size)
        self.register_buffer("rel_index", coords[:, None] - coords[None, :] + window_size - 1)
        nn.init.normal_(self.bias_table, std=.02)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B_, W, C = x.shape  # B_ = num_windows*B (see above)
        nH = self.num_heads
        qkv = self.qkv(x).reshape(B_, W, 3, nH, C // nH).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]  # B_, nH, W, C/nH

        attn = (q * self.scale) @ k.transpose(-2, -1)  # B_, nH, W, W
        bias = self.bias_table[self.rel_index.view(-1)].view(W, W, -1)  # W, W, nH
        bias = bias.permute(2, 0, 1).contiguous()  # nH, W, W
        attn = attn + bias.unsqueeze(0)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B_, W, C)
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size = window_size
        self.attn = WindowAttention(dim, window_size, num_heads)

    def forward(self, x):
        B, T, C = x.shape
        W = self.window_size
        wins = window_partition(x, W)  # (B*T/W, W, C)
        wins = self.attn(wins)
        y = window_reverse(wins, W, T)  # (B, T, C)
        return x + y


def case(B, H, L, Dk, W):
    return Block(H * Dk, W, H), (torch.randn(B, L * W, H * Dk),)
