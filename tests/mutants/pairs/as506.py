"""AS506: queries see other keys than `visible` claims, or don't see all of those."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

PROMPT = (
    {"B": 3, "H": 5, "L": 11, "Dk": 6, "W": 4},
    {"B": 5, "H": 4, "L": 13, "Dk": 8, "W": 3},
    {"B": 6, "H": 7, "L": 9, "Dk": 4, "W": 5},
)
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 8},
    {"B": 5, "H": 6, "L": 9, "Lp": 7, "Dk": 8},
    {"B": 6, "H": 7, "L": 10, "Lp": 8, "Dk": 4},
)
BLOCKS = (
    {"B": 3, "H": 5, "Dk": 6, "W": 4},
    {"B": 5, "H": 4, "Dk": 8, "W": 3},
    {"B": 6, "H": 7, "Dk": 8, "W": 4},
)
ROLLED = (
    {"B": 3, "H": 5, "Dk": 6, "W": 7},
    {"B": 5, "H": 4, "Dk": 8, "W": 6},
    {"B": 6, "H": 7, "Dk": 8, "W": 9},
)
PAIRS = [
    ("AS506", "prefix_up_to", *PROMPT),
    ("AS506", "documents_in_order", *PROMPT),
    ("AS506", "global_row_alone", *PROMPT),
    ("AS506", "padded_prompt", *PROMPT),
    ("AS506", "cached_prompt", *PAST),
    ("AS506", "columns_for_rows", *BLOCKS),
    ("AS506", "chunks_for_strides", *BLOCKS),
    ("AS506", "regions_of_other_width", *ROLLED),
    ("AS506", "prompt_without_softmax", *PROMPT),
    ("AS506", "gathered_neighbours", *PROMPT),
]


def table(queries, keys, sees):
    """Return which keys are visible, (queries, keys)."""
    return torch.tensor([[bool(sees(q, k)) for k in range(keys)] for q in range(queries)])


class RightPrompt(nn.Module):
    """A language model whose first tokens are a prompt that every token sees."""

    def __init__(self, hidden_size, num_heads, prompt_length):
        super().__init__()
        self.num_heads, self.prompt_length = num_heads, prompt_length
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def prompt(self, columns):
        return columns < self.prompt_length

    def forward(self, hidden_states):
        bsz, q_len, hidden = hidden_states.shape
        shape = (bsz, q_len, self.num_heads, hidden // self.num_heads)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        rows, columns = torch.arange(q_len)[:, None], torch.arange(q_len)[None, :]
        allowed = (columns <= rows) | self.prompt(columns)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(bsz, q_len, hidden))


class WrongPrompt(RightPrompt):
    def prompt(self, columns):
        return columns <= self.prompt_length  # wrong: AS506 prefix_up_to


def _prefix_up_to(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["visible=k <= q or k < W"]


def wrong_prefix_up_to(B, H, L, Dk, W):
    return _prefix_up_to(WrongPrompt, B, H, L, Dk, W)


def right_prefix_up_to(B, H, L, Dk, W):
    return _prefix_up_to(RightPrompt, B, H, L, Dk, W)


def reference_prefix_up_to(module, x):
    q, k, v = (heads(x, linear, module.num_heads) for linear in (module.q_proj, module.k_proj, module.v_proj))
    keep = table(x.shape[1], x.shape[1], lambda q, k: k <= q or k < module.prompt_length)
    return merge(attend(q, k, v, keep), module.o_proj)


def right_documents(length, width):
    document = torch.arange(length) // width
    return torch.where(document[:, None] == document[None, :], 0.0, float("-inf"))


def wrong_documents(length, width):
    document = torch.arange(length) // width
    return torch.where(document[:, None] >= document[None, :], 0.0, float("-inf"))  # wrong: AS506 documents_in_order


class Packed:
    """Documents of one length in one sequence, each of which attends to itself."""

    def __init__(self, documents, width):
        self.documents, self.width = documents, width

    def __call__(self, q, k, v):
        scores = torch.einsum("blhd,bmhd->bhlm", q, k) * q.shape[-1] ** -0.5
        weights = (scores + self.documents(q.shape[1], self.width).to(q.dtype)).softmax(dim=-1)
        return torch.einsum("bhlm,bmhd->blhd", weights, v)


def _documents_in_order(documents, B, H, L, Dk, W):
    claims = {"visible": "q // W == k // W"}
    return Packed(documents, W), tuple(torch.randn(B, L, H, Dk) for _ in range(3)), {}, claims


def wrong_documents_in_order(B, H, L, Dk, W):
    return _documents_in_order(wrong_documents, B, H, L, Dk, W)


def right_documents_in_order(B, H, L, Dk, W):
    return _documents_in_order(right_documents, B, H, L, Dk, W)


def reference_documents_in_order(packed, q, k, v):
    keep = table(q.shape[1], q.shape[1], lambda q, k: q // packed.width == k // packed.width)
    return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), keep).transpose(1, 2)


class RightGlobal(nn.Module):
    """A sliding window, and a first token that sees every other one, and is seen by it."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def global_tokens(self, keep):
        keep[0, :] = True
        keep[:, 0] = True
        return keep

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        i = torch.arange(x.shape[1], device=x.device)
        keep = self.global_tokens((i[:, None] - i).abs() < self.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out(out.transpose(1, 2).flatten(2))


class WrongGlobal(RightGlobal):
    def global_tokens(self, keep):
        keep[:, 0] = True
        return keep


def _global_row_alone(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["visible=abs(q - k) < W or q == 0 or k == 0"]


def wrong_global_row_alone(B, H, L, Dk, W):
    return _global_row_alone(WrongGlobal, B, H, L, Dk, W)


def right_global_row_alone(B, H, L, Dk, W):
    return _global_row_alone(RightGlobal, B, H, L, Dk, W)


def reference_global_row_alone(module, x):
    keep = table(x.shape[1], x.shape[1], lambda q, k: abs(q - k) < module.window or not q * k)
    return merge(attend(*fused(x, module.qkv, module.heads), keep), module.out)


def right_padded(q, k, v, pad, width):
    allowed = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    allowed[:, :width] = True
    hidden = ~allowed | pad[:, None, None, :]
    scores = (q @ k.transpose(2, 3)).div(q.size(3) ** 0.5).masked_fill(hidden, float("-inf"))
    return scores.softmax(dim=3) @ v


def _padded_prompt(attention, B, H, L, Dk, W):
    q, k, v = (torch.randn(B, H, L, Dk) for _ in range(3))
    pad = torch.arange(L) >= L - torch.arange(B)[:, None] % 3
    return attention, (q, k, v, pad, W), {}, ["visible=k < W or k <= q", "pad=drop"]


def wrong_padded_prompt(B, H, L, Dk, W):
    def attention(q, k, v, pad, width):
        allowed = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(-1)  # wrong: AS506 padded_prompt
        allowed[:, :width] = True
        hidden = ~allowed | pad[:, None, None, :]
        scores = (q @ k.transpose(2, 3)).div(q.size(3) ** 0.5).masked_fill(hidden, float("-inf"))
        return scores.softmax(dim=3) @ v

    return _padded_prompt(attention, B, H, L, Dk, W)


def right_padded_prompt(B, H, L, Dk, W):
    return _padded_prompt(right_padded, B, H, L, Dk, W)


def reference_padded_prompt(attention, q, k, v, pad, width):
    keep = table(q.shape[2], q.shape[2], lambda q, k: k <= q or k < width)
    return attend(q, k, v, keep & ~pad[:, None, None])


class RightCached(nn.Module):
    """Every token sees the whole prompt, which is cached, and the tokens of its own turn up to itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)

    def turn(self, tokens):
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()

    def forward(self, x, past_k, past_v):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        keep = F.pad(self.turn(x.shape[1]), (past_k.shape[2], 0), value=True)
        scores = torch.where(keep, torch.matmul(q, k.mT) * q.shape[-1] ** -0.5, float("-inf"))
        return torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).flatten(-2)


class WrongCached(RightCached):
    def turn(self, tokens):
        return torch.ones(tokens, tokens, dtype=torch.bool).triu()  # wrong: AS506 cached_prompt


def _cached_prompt(cls, B, H, L, Lp, Dk):
    past = torch.randn(2, B, H, Lp, Dk)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *past), {}, ["visible=k < Lp or k - Lp <= q"]


def wrong_cached_prompt(B, H, L, Lp, Dk):
    return _cached_prompt(WrongCached, B, H, L, Lp, Dk)


def right_cached_prompt(B, H, L, Lp, Dk):
    return _cached_prompt(RightCached, B, H, L, Lp, Dk)


def reference_cached_prompt(module, x, past_k, past_v):
    q, k, v = fused(x, module.to_qkv, module.heads)
    past = past_k.shape[2]
    keep = table(x.shape[1], past + x.shape[1], lambda q, k: k <= q + past)
    return merge(attend(q, torch.cat((past_k, k), 2), torch.cat((past_v, v), 2), keep))


class RightAxial(nn.Module):
    """Attention along the rows of a map with its channels last."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def along(self, t):
        return t

    def forward(self, x):
        lines = self.along(x).flatten(0, 1)
        qkv = self.qkv(lines).reshape(*lines.shape[:2], 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
        out = self.proj((attn @ v).transpose(1, 2).flatten(2))
        return self.along(out.view(self.along(x).shape))


class WrongAxial(RightAxial):
    def along(self, t):
        return t.transpose(1, 2)


def _columns_for_rows(cls, B, H, Dk, W):
    x = torch.randn(B, W, 2 * W, H * Dk)
    return cls(H * Dk, H), (x,), {}, ["visible=q // (2*W) == k // (2*W)"]


def wrong_columns_for_rows(B, H, Dk, W):
    return _columns_for_rows(WrongAxial, B, H, Dk, W)


def right_columns_for_rows(B, H, Dk, W):
    return _columns_for_rows(RightAxial, B, H, Dk, W)


def reference_columns_for_rows(module, x):
    X = x.shape[2]
    keep = table(X * x.shape[1], X * x.shape[1], lambda q, k: q // X == k // X)
    return merge(attend(*fused(x.flatten(1, 2), module.qkv, module.num_heads), keep), module.proj).view(x.shape)


def right_strides(t):
    return t.unflatten(1, (-1, 2)).transpose(1, 2)


def wrong_strides(t):
    return t.unflatten(1, (2, -1))


def of_strides(t):
    return t.transpose(1, 2).flatten(1, 2)


def of_chunks(t):
    return t.flatten(1, 2)


class Dilated:
    """Every second token attends to every second one."""

    def __init__(self, divide, join, heads):
        self.divide, self.join, self.heads = divide, join, heads

    def __call__(self, q, k, v):
        q, k, v = (self.divide(t).unflatten(-1, (self.heads, -1)).transpose(2, 3) for t in (q, k, v))
        return self.join(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3))


def _chunks_for_strides(divide, join, B, H, Dk, W):
    inputs = tuple(torch.randn(B, 4 * W, H * Dk) for _ in range(3))
    return Dilated(divide, join, H), inputs, {}, ["visible=(q - k) % 2 == 0"]


def wrong_chunks_for_strides(B, H, Dk, W):
    return _chunks_for_strides(wrong_strides, of_chunks, B, H, Dk, W)


def right_chunks_for_strides(B, H, Dk, W):
    return _chunks_for_strides(right_strides, of_strides, B, H, Dk, W)


def reference_chunks_for_strides(dilated, q, k, v):
    q, k, v = (torch.stack(t.chunk(dilated.heads, -1), 1) for t in (q, k, v))
    return merge(attend(q, k, v, table(q.shape[2], q.shape[2], lambda q, k: (q - k) % 2 == 0)))


class RightRegions(nn.Module):
    """Windows of a sequence that is rolled by half a window."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2
        self.qkv = nn.Linear(dim, 3 * dim)

    def regions(self, length):
        return torch.arange(length) >= length - self.shift

    def forward(self, x):
        windows = x.roll(-self.shift, dims=1).unflatten(1, (-1, self.window))
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        region = self.regions(x.shape[1]).unflatten(0, (-1, self.window))
        same = region[:, :, None] == region[:, None, :]
        attn = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~same[:, None], float("-inf")).softmax(-1)
        return (attn @ v).transpose(2, 3).flatten(1, 2).flatten(2).roll(self.shift, dims=1)


class WrongRegions(RightRegions):
    def regions(self, length):
        return torch.arange(length) >= length - 1  # wrong: AS506 regions_of_other_width


def _regions_of_other_width(cls, B, H, Dk, W):
    claim = "visible=(q - W//2) // W == (k - W//2) // W"
    return cls(H * Dk, H, W), (torch.randn(B, 3 * W, H * Dk),), {}, [claim]


def wrong_regions_of_other_width(B, H, Dk, W):
    return _regions_of_other_width(WrongRegions, B, H, Dk, W)


def right_regions_of_other_width(B, H, Dk, W):
    return _regions_of_other_width(RightRegions, B, H, Dk, W)


def reference_regions_of_other_width(module, x):
    def region(position):
        return (position - module.shift) // module.window

    keep = table(x.shape[1], x.shape[1], lambda q, k: region(q) == region(k))
    return merge(attend(*fused(x, module.qkv, module.heads), keep))


def right_state(kv, prompt):
    return torch.cat([kv[:, :, prompt - 1 : prompt].expand(-1, -1, prompt, -1, -1), kv[:, :, prompt:]], 2)


def wrong_state(kv, prompt):
    return kv


class LinearPrompt:
    """Linear attention, causal after a prompt that sees itself as a whole."""

    def __init__(self, state, prompt):
        self.state, self.prompt = state, prompt

    def __call__(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = self.state((k[..., :, None] * v[..., None, :]).cumsum(2), self.prompt)
        total = self.state(k[..., None].cumsum(2), self.prompt).squeeze(-1)
        return torch.einsum("bhld,bhlde->bhle", q, kv) / torch.einsum("bhld,bhld->bhl", q, total)[..., None]


def _prompt_without_softmax(state, B, H, L, Dk, W):
    return LinearPrompt(state, W), tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["visible=k <= q or k < W"]


def wrong_prompt_without_softmax(B, H, L, Dk, W):
    return _prompt_without_softmax(wrong_state, B, H, L, Dk, W)


def right_prompt_without_softmax(B, H, L, Dk, W):
    return _prompt_without_softmax(right_state, B, H, L, Dk, W)


def reference_prompt_without_softmax(linear, q, k, v):
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    scores = scores * table(q.shape[2], q.shape[2], lambda q, k: k <= q or k < linear.prompt)
    return scores / scores.sum(-1, keepdim=True) @ v


class RightNeighbours(nn.Module):
    """Each token gathers the keys of its neighbours on a ring, itself included."""

    def __init__(self, dim, heads, reach):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def offsets(self):
        return torch.arange(self.reach)

    def forward(self, x):
        length = x.shape[1]
        neighbours = (torch.arange(length)[:, None] - self.offsets()) % length
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = (linear(x)[:, neighbours].unflatten(-1, (self.heads, -1)) for linear in (self.to_k, self.to_v))
        scores = torch.einsum("blhd,blnhd->blhn", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("blhn,blnhd->blhd", scores.softmax(-1), v).flatten(2)


class WrongNeighbours(RightNeighbours):
    def offsets(self):
        return torch.arange(self.reach) - 1


def _gathered_neighbours(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["visible=(q - k) % L < W"]


def wrong_gathered_neighbours(B, H, L, Dk, W):
    return _gathered_neighbours(WrongNeighbours, B, H, L, Dk, W)


def right_gathered_neighbours(B, H, L, Dk, W):
    return _gathered_neighbours(RightNeighbours, B, H, L, Dk, W)


def reference_gathered_neighbours(module, x):
    length = x.shape[1]
    q, k, v = (heads(x, linear, module.heads) for linear in (module.to_q, module.to_k, module.to_v))
    return merge(attend(q, k, v, table(length, length, lambda q, k: (q - k) % length < module.reach)))
