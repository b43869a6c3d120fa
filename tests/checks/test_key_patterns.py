"""The patterns of keys that queries see: one for all heads, or one for each group of heads that see the same."""

import torch
from torch import nn

import attnshape

SIZES = {"B": 3, "H": 5, "L": 7, "Dk": 4}


def attend(q, k, v, keep):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def patterns(case):
    return attnshape.check(case, **SIZES).visible


def expected(found, sees):
    """Return the rows of a pattern as a condition on positions gives them."""
    size = len(found.rows)
    assert size > 2
    return tuple("".join("#" if sees(q, k) else "." for k in range(size)) for q in range(size))


def qkv(B, H, L, Dk):
    return tuple(torch.randn(3, B, H, L, Dk))


def test_heads_that_see_the_same_share_a_pattern():
    def case(B, H, L, Dk):
        def call(q, k, v):
            i = torch.arange(L)
            causal, local = i <= i[:, None], (i[:, None] - i).abs() < 2
            return attend(q, k, v, torch.stack([causal if head % 2 else local for head in range(H)]))

        return call, qkv(B, H, L, Dk)

    local, causal = patterns(case)
    assert local.part.startswith("heads 0, 2")
    assert causal.part.startswith("heads 1")
    assert local.rows == expected(local, lambda q, k: abs(q - k) < 2)
    assert causal.rows == expected(causal, lambda q, k: k <= q)
    assert local.queries == local.keys == "L"
    assert not local.first_element


def test_one_pattern_for_all_heads_and_elements():
    def case(B, H, L, Dk):
        return lambda q, k, v: attend(q, k, v, torch.ones(L, L, dtype=torch.bool).tril()), qkv(B, H, L, Dk)

    (found,) = patterns(case)
    assert (found.part, found.first_element) == ("", False)
    assert found.rows == expected(found, lambda q, k: k <= q)


def test_keys_after_a_cache_have_the_sum_of_the_lengths():
    def case(B, H, L, Lp, Dk):
        def call(q, k, v, past):
            keys = torch.cat([past, k], dim=2)
            seen = torch.arange(L + Lp) <= torch.arange(L)[:, None] + Lp
            return attend(q, keys, torch.cat([past, v], dim=2), seen)

        return call, (*qkv(B, H, L, Dk), torch.randn(B, H, Lp, Dk))

    (found,) = attnshape.check(case, **SIZES, Lp=6).visible
    assert (found.queries, found.keys) == ("L", "Lp+L")


def test_elements_that_differ_are_named():
    def case(B, H, L, Dk):
        lengths = torch.arange(B) + 2
        return lambda q, k, v, n: attend(q, k, v, (torch.arange(L) < n[:, None])[:, None, None]), (
            *qkv(B, H, L, Dk),
            lengths,
        )

    (found,) = patterns(case)
    assert found.first_element
    assert found.rows == expected(found, lambda q, k: k < 2)


def test_layers_of_one_line_share_a_pattern():
    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 1, -1)).permute(2, 0, 3, 1, 4)
            return x + attend(q, k, v, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()).squeeze(1)

    def case(B, L, Dk):
        return nn.Sequential(*(Layer(Dk) for _ in range(3))), (torch.randn(B, L, Dk),)

    (found,) = attnshape.check(case, B=3, L=7, Dk=4).visible
    assert found.attention.endswith("(0, 1, 2)")
