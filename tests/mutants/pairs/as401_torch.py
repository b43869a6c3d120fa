"""AS401 in a block around torch's own attention: a mask of kept keys is given where dropped ones are expected."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, merge, project

PAIRS = [
    (
        "AS401",
        "torch_multihead",
        {"B": 4, "H": 5, "L": 7, "Dk": 6},
        {"B": 5, "H": 4, "L": 9, "Dk": 8},
        {"B": 6, "H": 7, "L": 5, "Dk": 4},
    ),
]


class RightEncoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def attend(self, h, mask):
        return self.attn(h, h, h, key_padding_mask=~mask, need_weights=False)[0]

    def forward(self, x, mask):
        return x + self.attend(self.norm(x), mask)


class WrongEncoder(RightEncoder):
    def attend(self, h, mask):
        return self.attn(h, h, h, key_padding_mask=mask, need_weights=False)[0]  # wrong: AS401 torch_multihead


def _torch_multihead(cls, B, H, L, Dk):
    mask = torch.arange(L)[None, :] < torch.randint(1, L, (B, 1))
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]


def wrong_torch_multihead(B, H, L, Dk):
    return _torch_multihead(WrongEncoder, B, H, L, Dk)


def right_torch_multihead(B, H, L, Dk):
    return _torch_multihead(RightEncoder, B, H, L, Dk)


def reference_torch_multihead(module, x, mask):
    attn = module.attn
    centred = x - x.mean(-1, keepdim=True)
    normal = centred / (centred.pow(2).mean(-1, keepdim=True) + module.norm.eps).sqrt()
    h = normal * module.norm.weight + module.norm.bias
    packed = torch.einsum("bli,oi->blo", h, attn.in_proj_weight) + attn.in_proj_bias
    q, k, v = packed.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return x + project(merge(attend(q, k, v, mask[:, None, None])), attn.out_proj)
