"""Source code of a small project: right, wrong, failing, and missing."""

RIGHT = """
import math
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.d_head = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        B, L, D = x.shape
        query, key, value = self.qkv(x).view(B, L, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
        context = scores.softmax(dim=-1) @ value
        return self.out(context.transpose(1, 2).reshape(B, L, D))


def double(x):
    doubled = x * 2
    return doubled


def fails(q, k):
    scores = q @ k
    return scores
"""
WRONG = RIGHT.replace("math.sqrt(self.d_head)", "math.sqrt(D)")
ENTRY = """
[tool.attnshape.targets.attention]
target = "model.py:Attention"
init = "D, H"
inputs = ["x: B L D"]
"""
SIZES = "sizes = [{ B = 2, L = 10 }, { B = 1, L = 1 }]\n"
DOUBLE = """
[tool.attnshape.targets.double]
target = "model.py:double"
inputs = ["x: B T"]
dim = { T = 4 }
"""
FAILS = """
[tool.attnshape.targets.fails]
target = "model.py:fails"
inputs = ["q: B L Dk", "k: B L Dk"]
"""
MISSING = """
[tool.attnshape.targets.missing]
target = "nosuch.py:f"
"""
