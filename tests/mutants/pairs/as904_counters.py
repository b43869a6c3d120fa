"""AS904: calls in eval mode are counted too, and what later calls return depends on the number."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS904", "steps_anneal", *SELF),
    ("AS904", "steps_switch", *SELF),
    ("AS904", "every_thousandth_call", *SELF),
]


class RightAnnealed(nn.Module):
    """The softmax becomes sharper with each step of training."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("steps", torch.tensor(0))

    def split(self, x):
        return (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))

    def count(self):
        if self.training:
            self.steps += 1

    def forward(self, x):
        q, k, v = self.split(x)
        scores = q @ k.mT * q.shape[-1] ** -0.5 * (1 + self.steps / 100)
        self.count()
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongAnnealed(RightAnnealed):
    def count(self):
        self.steps += 1  # wrong: AS904 steps_anneal


def _counted(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_steps_anneal(B, H, L, Dk):
    return _counted(WrongAnnealed, B, H, L, Dk)


def right_steps_anneal(B, H, L, Dk):
    return _counted(RightAnnealed, B, H, L, Dk)


def reference_steps_anneal(module, x):
    return merge(attend(*fused(x, module.qkv, module.heads)), module.out)


class RightSwitched(RightAnnealed):
    """The residual connection is added once training has warmed up, with the kernel of torch."""

    def forward(self, x):
        self.count()
        q, k, v = self.split(x)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + y if self.steps > 500 else y


class WrongSwitched(RightSwitched):
    def count(self):
        self.steps.add_(1)  # wrong: AS904 steps_switch


def wrong_steps_switch(B, H, L, Dk):
    return _counted(WrongSwitched, B, H, L, Dk)


def right_steps_switch(B, H, L, Dk):
    return _counted(RightSwitched, B, H, L, Dk)


reference_steps_switch = reference_steps_anneal


class RightPeriodic(RightAnnealed):
    """Every thousandth step of training, heads are dropped, in einsum."""

    def forward(self, x):
        q, k, v = self.split(x)
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).softmax(dim=-1)
        keep = torch.where(self.steps % 1000 == 999, 0.0, 1.0)
        self.count()
        return self.out(torch.einsum("bhij,bhjd->bihd", weights, v * keep).flatten(2))


class WrongPeriodic(RightPeriodic):
    def count(self):
        self.steps.copy_(self.steps + 1)  # wrong: AS904 every_thousandth_call


def wrong_every_thousandth_call(B, H, L, Dk):
    return _counted(WrongPeriodic, B, H, L, Dk)


def right_every_thousandth_call(B, H, L, Dk):
    return _counted(RightPeriodic, B, H, L, Dk)


reference_every_thousandth_call = reference_steps_anneal
