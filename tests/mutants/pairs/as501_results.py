"""AS501 where no softmax of scores shows which keys are visible: the results show it."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project, visible

SIZES = (
    {"B": 7, "H": 5, "L": 9, "Dk": 6},
    {"B": 5, "H": 3, "L": 11, "Dk": 7},
    {"B": 6, "H": 2, "L": 8, "Dk": 5},
)
BLOCK = 4
PAIRS = [
    ("AS501", "kernel_products_one_late", *SIZES),
    ("AS501", "sigmoid_of_next_token", *SIZES),
    ("AS501", "decay_on_both_sides", *SIZES),
    ("AS501", "sums_with_the_next_token", *SIZES),
    ("AS501", "running_softmax_by_blocks", *SIZES),
    ("AS501", "next_token_from_the_end", *SIZES),
    ("AS501", "mean_of_all_steps", *SIZES),
]


class Base(nn.Module):
    """`attend` gets queries, keys and values, (B, H, L, Dk) each."""

    def __init__(self, width, heads, window=None):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def _case(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def weighed(module, x, weigh):
    """Return the result where the weights of visible keys are a function of the plain scores."""
    q, k, v = fused(x, module.qkv, module.heads)
    weights = weigh(q, k) * visible(x.shape[1], x.shape[1], module.window)
    return merge(torch.einsum("bhqk,bhkd->bhqd", weights, v), module.out)


def plain(q, k):
    return torch.einsum("bhqd,bhkd->bhqk", q, k)


class Kernel(Base):
    """Linear attention with the products of features written out."""

    def mask(self, products):
        return products.tril()

    def attend(self, q, k, v):
        q, k = (nn.functional.elu(t) + 1 for t in (q, k))
        products = self.mask(q @ k.transpose(-2, -1))  # wrong: AS501 kernel_products_one_late
        return products @ v / products.sum(dim=-1, keepdim=True)


class LateKernel(Kernel):
    def mask(self, products):
        return products.tril(1)


def wrong_kernel_products_one_late(B, H, L, Dk):
    return _case(LateKernel, B, H, L, Dk)


def right_kernel_products_one_late(B, H, L, Dk):
    return _case(Kernel, B, H, L, Dk)


def _features(x):
    return torch.where(x > 0, x + 1, x.exp())


def reference_kernel_products_one_late(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    products = plain(_features(q), _features(k)) * visible(x.shape[1], x.shape[1], module.window)
    return merge(torch.einsum("bhqk,bhkd->bhqd", products / products.sum(-1, keepdim=True), v), module.out)


class Sigmoid(Base):
    def kept(self, length):
        return torch.ones(length, length, dtype=torch.bool).tril()

    def attend(self, q, k, v):
        weights = torch.sigmoid(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5)
        weights = weights.where(self.kept(q.shape[2]), torch.zeros(()).to(weights))
        return torch.einsum("bhij,bhjd->bhid", weights, v)


class LateSigmoid(Sigmoid):
    def kept(self, length):
        return torch.ones(length, length, dtype=torch.bool).triu(2).logical_not()


def wrong_sigmoid_of_next_token(B, H, L, Dk):
    return _case(LateSigmoid, B, H, L, Dk)


def right_sigmoid_of_next_token(B, H, L, Dk):
    return _case(Sigmoid, B, H, L, Dk)


def reference_sigmoid_of_next_token(module, x):
    return weighed(module, x, lambda q, k: 1 / (1 + torch.exp(-plain(q, k) * q.shape[-1] ** -0.5)))


class Retention(Base):
    """The weight of a key falls with its distance, by another factor in each head."""

    def decay(self, length):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        factors = 1 - 2.0 ** -(1 + torch.arange(self.heads))
        return torch.where(distance >= 0, factors[:, None, None] ** distance.clamp(min=0), 0.0)

    def attend(self, q, k, v):
        return ((q @ k.mT) * self.decay(q.shape[-2]).to(q)) @ v  # wrong: AS501 decay_on_both_sides


class RetentionBothSides(Retention):
    def decay(self, length):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        return (1 - 2.0 ** -(1 + torch.arange(self.heads)))[:, None, None] ** distance.abs()


def wrong_decay_on_both_sides(B, H, L, Dk):
    return _case(RetentionBothSides, B, H, L, Dk)


def right_decay_on_both_sides(B, H, L, Dk):
    return _case(Retention, B, H, L, Dk)


def reference_decay_on_both_sides(module, x):
    at = torch.arange(x.shape[1])
    decay = [(1 - 0.5 ** (head + 1)) ** (at[:, None] - at).abs() for head in range(module.heads)]
    return weighed(module, x, lambda q, k: plain(q, k) * torch.stack(decay))


class Sums(Base):
    """Linear attention as a loop over tokens, which adds each key and value to a state."""

    def ahead(self):
        return 0

    def attend(self, q, k, v):
        q, k = q.softmax(dim=-1), k.exp()
        state, total, contexts = 0, 0, []
        pairs = k.unsqueeze(-1) * v.unsqueeze(-2)
        for t in range(q.shape[2] + self.ahead()):
            if t < q.shape[2]:
                state, total = state + pairs[:, :, t], total + k[:, :, t]
            if t >= self.ahead():
                query = q[:, :, t - self.ahead()]
                norm = (query * total).sum(dim=-1, keepdim=True)
                contexts.append(torch.einsum("bhd,bhde->bhe", query, state) / norm)
        return torch.stack(contexts, dim=2)


class SumsAhead(Sums):
    def ahead(self):
        return 1


def wrong_sums_with_the_next_token(B, H, L, Dk):
    return _case(SumsAhead, B, H, L, Dk)


def right_sums_with_the_next_token(B, H, L, Dk):
    return _case(Sums, B, H, L, Dk)


def reference_sums_with_the_next_token(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    q = q.exp() / q.exp().sum(-1, keepdim=True)
    products = plain(q, k.exp()) * visible(x.shape[1], x.shape[1])
    return merge(torch.einsum("bhqk,bhkd->bhqd", products / products.sum(-1, keepdim=True), v), module.out)


class Running(Base):
    """A softmax over blocks of keys, with the maximum and the sum so far."""

    def kept(self, i, j):
        return j <= i

    def attend(self, q, k, v):
        i = torch.arange(q.shape[2])[:, None]
        most = q.new_full((*q.shape[:3], 1), -1e9)
        total, context = torch.zeros_like(most), torch.zeros_like(v)
        for start in range(0, k.shape[2], BLOCK):
            keys, values = k[:, :, start : start + BLOCK], v[:, :, start : start + BLOCK]
            scores = torch.einsum("bhid,bhjd->bhij", q, keys) * q.shape[-1] ** -0.5
            kept = self.kept(i, start + torch.arange(keys.shape[2]))
            scores = scores.masked_fill(~kept, -torch.inf)
            new = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
            weights, before = torch.exp(scores - new), torch.exp(most - new)
            total = total * before + weights.sum(dim=-1, keepdim=True)
            context = context * before + torch.einsum("bhij,bhjd->bhid", weights, values)
            most = new
        return context / total


class RunningByBlocks(Running):
    def kept(self, i, j):
        return j // BLOCK <= i // BLOCK


def wrong_running_softmax_by_blocks(B, H, L, Dk):
    return _case(RunningByBlocks, B, H, L, Dk)


def right_running_softmax_by_blocks(B, H, L, Dk):
    return _case(Running, B, H, L, Dk)


def reference_running_softmax_by_blocks(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    weights = (plain(q, k) * q.shape[-1] ** -0.5).exp() * visible(x.shape[1], x.shape[1], module.window)
    return merge(torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v), module.out)


class Ahead(Base):
    """A second head predicts one token further: it reads each token's state and the token after it."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.join = nn.Linear(2 * width, width)

    def after(self, x):
        return x.roll(-1, dims=1)

    def attend(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        state = super().forward(x)
        joined = torch.cat([state, self.after(x)], dim=-1)
        return self.join(joined)[:, :-1], state


class AheadFromTheEnd(Ahead):
    def after(self, x):
        return x.roll(1, dims=1)  # wrong: AS501 next_token_from_the_end


def wrong_next_token_from_the_end(B, H, L, Dk):
    return _case(AheadFromTheEnd, B, H, L, Dk)


def right_next_token_from_the_end(B, H, L, Dk):
    return _case(Ahead, B, H, L, Dk)


def reference_next_token_from_the_end(module, x):
    state = causal(module, x)
    pairs = [torch.cat([state[:, at], x[:, at + 1]], -1) for at in range(x.shape[1] - 1)]
    return project(torch.stack(pairs, dim=1), module.join), state


def causal(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.out)


class Changes(Base):
    """What each step changes, beside the mean of the steps so far."""

    def attend(self, q, k, v):
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return ((q @ k.mT) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def means(self, state):
        return state.cumsum(dim=1) / torch.arange(1, state.shape[1] + 1).to(state)[:, None]

    def forward(self, x):
        state = super().forward(x)
        return (state - self.means(state))[:, 1:]


class ChangesBeside(Changes):
    def means(self, state):
        return state.mean(dim=1, keepdim=True) * torch.ones_like(state)  # wrong: AS501 mean_of_all_steps


def wrong_mean_of_all_steps(B, H, L, Dk):
    return _case(ChangesBeside, B, H, L, Dk)


def right_mean_of_all_steps(B, H, L, Dk):
    return _case(Changes, B, H, L, Dk)


def reference_mean_of_all_steps(module, x):
    state = causal(module, x)
    means = [state[:, : at + 1].sum(1) / (at + 1) for at in range(1, x.shape[1])]
    return state[:, 1:] - torch.stack(means, dim=1)
