"""The line that repeats key and value heads."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import grouped_heads
from attnshape.checks.rules.protocol import Violation
from tests.checks.subjects import subject_of


def rotated(x):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x + torch.stack((-odd, even), -1).flatten(-2)


class Tiled(nn.Module):
    """Keys are joined of two parts, and then repeated as a block."""

    def __init__(self, H, Hkv, Dk, repeat):
        super().__init__()
        self.Dk, self.repeat = Dk, repeat
        self.q, self.kv = nn.Linear(H * Dk, H * Dk), nn.Linear(H * Dk, 2 * Hkv * Dk)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (-1, self.Dk)).transpose(1, 2) for t in (self.q(x), *self.kv(x).chunk(2, -1)))
        groups = q.shape[1] // k.shape[1]
        k, v = (self.repeat(t, groups) for t in (rotated(k), v))
        return F.scaled_dot_product_attention(rotated(q), k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("repeat", "name"),
    [
        (lambda t, groups: t.repeat(1, groups, 1, 1), "repeat"),
        (lambda t, groups: torch.cat([t] * groups, 1), "cat"),
        (lambda t, groups: t.unsqueeze(1).expand(-1, groups, -1, -1, -1).flatten(1, 2), "expand"),
    ],
)
def test_repeat_after_a_rotation_is_named(repeat, name):
    module = Tiled(6, 3, 4, repeat).double()
    subject = subject_of(lambda x: module(x), {"x": "B L D"}, Hkv=3, G=2, Dk=4, D=24)
    (found,) = grouped_heads.check(subject)
    assert isinstance(found, Violation)
    assert subject.base.event(found.at).name == name
