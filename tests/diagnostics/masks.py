"""Failures of masks and other operands that don't broadcast."""

from tests.diagnostics.failing_case import Failing

CASES = {
    "padding_mask_without_axes": Failing(
        """
        def f(q, k, mask):
            scores = q @ k.transpose(-2, -1)
            scores = scores.masked_fill(~mask, float("-inf"))  # fails
            return scores.softmax(dim=-1)
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "mask: bool B Lk"),
        "`scores` and `~mask` don't broadcast in masked_fill: the second axis from the right is Lq=10 in "
        "`scores` and B=2 in `~mask`",
        {"scores": "B H [Lq] Lk", "~mask": "[B] Lk"},
        hint="(~mask)[:, None, None, :] makes it B H Lq Lk (tried)",
        replaces="~mask",
    ),
    "mask_without_heads": Failing(
        """
        def f(scores, mask):
            return scores.masked_fill(mask == 0, -1e9)  # fails
        """,
        ("scores: B H Lq Lk", "mask: bool B Lq Lk"),
        "`scores` and `mask == 0` don't broadcast in masked_fill: the third axis from the right is H=8 in "
        "`scores` and B=2 in `mask == 0`",
        {"scores": "B [H] Lq Lk", "mask == 0": "[B] Lq Lk"},
        hint="(mask == 0)[:, None, :, :] makes it B H Lq Lk (tried)",
        replaces="mask == 0",
    ),
    "mask_without_heads_by_name": Failing(
        """
        def f(scores, mask):
            return scores.masked_fill(mask, -1e9)  # fails
        """,
        ("scores: B H Lq Lk", "mask: bool B Lq Lk"),
        "`scores` and `mask` don't broadcast in masked_fill: the third axis from the right is H=8 in `scores`"
        " and B=2 in `mask`",
        {"scores": "B [H] Lq Lk", "mask": "[B] Lq Lk"},
        hint="mask[:, None, :, :] makes it B H Lq Lk (tried)",
        replaces="mask",
    ),
    "padding_mask_in_self_attention": Failing(
        """
        def f(scores, padding):
            return scores.masked_fill(padding, -1e9)  # fails
        """,
        ("scores: B H L L", "padding: bool B L"),
        "`scores` and `padding` don't broadcast in masked_fill: the second axis from the right is L=10 in "
        "`scores` and B=2 in `padding`",
        {"scores": "B H [L] L", "padding": "[B] L"},
        hint="padding[:, None, None, :] makes it B H L L (tried)",
        replaces="padding",
    ),
    "mask_of_queries_and_keys_exchanged": Failing(
        """
        def f(scores, mask):
            return scores.masked_fill(mask, -1e9)  # fails
        """,
        ("scores: B H Lq Lk", "mask: bool Lk Lq"),
        "`scores` and `mask` don't broadcast in masked_fill: the last axis is Lk=16 in `scores` and Lq=10 in "
        "`mask`; the second axis from the right is Lq=10 in `scores` and Lk=16 in `mask`",
        {"scores": "B H [Lq] [Lk]", "mask": "[Lk] [Lq]"},
        hint="mask.T makes it B H Lq Lk (tried)",
        replaces="mask",
    ),
    "mask_in_place": Failing(
        """
        def f(scores, mask):
            scores = scores + 0
            scores.masked_fill_(mask, float("-inf"))  # fails
            return scores
        """,
        ("scores: B H Lq Lk", "mask: bool B Lk"),
        "`scores` and `mask` don't broadcast in masked_fill: the second axis from the right is Lq=10 in "
        "`scores` and B=2 in `mask`",
        {"scores": "B H [Lq] Lk", "mask": "[B] Lk"},
        hint="mask[:, None, None, :] makes it B H Lq Lk (tried)",
        replaces="mask",
    ),
    "where": Failing(
        """
        def f(scores, keep):
            return torch.where(keep, scores, float("-inf"))  # fails
        """,
        ("scores: B H Lq Lk", "keep: bool B Lk"),
        "`scores` and `keep` don't broadcast in where: the second axis from the right is Lq=10 in `scores` "
        "and B=2 in `keep`",
        {"keep": "[B] Lk", "scores": "B H [Lq] Lk"},
        hint="keep[:, None, None, :] makes it B H Lq Lk (tried)",
        replaces="keep",
    ),
    "additive_mask": Failing(
        """
        def f(scores, mask):
            return scores + mask  # fails
        """,
        ("scores: B H Lq Lk", "mask: B Lk"),
        "`scores` and `mask` don't broadcast in add: the second axis from the right is Lq=10 in `scores` and "
        "B=2 in `mask`",
        {"scores": "B H [Lq] Lk", "mask": "[B] Lk"},
        hint="mask[:, None, None, :] makes it B H Lq Lk (tried)",
        replaces="mask",
    ),
    "additive_bias_of_heads": Failing(
        """
        def f(scores, slopes):
            return scores + slopes  # fails
        """,
        ("scores: B H Lq Lk", "slopes: H"),
        "`scores` and `slopes` don't broadcast in add: the last axis is Lk=16 in `scores` and H=8 in `slopes`",
        {"scores": "B H Lq [Lk]", "slopes": "[H]"},
        hint="slopes[:, None, None] makes it B H Lq Lk (tried)",
        replaces="slopes",
    ),
    "causal_mask_of_a_fixed_length": Failing(
        """
        class Causal(nn.Module):
            def __init__(self, longest=8):
                super().__init__()
                self.register_buffer("bias", torch.ones(longest, longest).tril().bool())

            def forward(self, scores):
                return scores.masked_fill(~self.bias, float("-inf"))  # fails
        """,
        ("scores: B H L L",),
        "`scores` and `~self.bias` don't broadcast in masked_fill: the last axis is L=10 in `scores` and 8 in"
        " `~self.bias`; the second axis from the right is L=10 in `scores` and 8 in `~self.bias`",
        {"scores": "B H [L] [L]", "~self.bias": "[8] [8]"},
        target="Causal",
        init="",
    ),
    "causal_mask_of_keys_alone": Failing(
        """
        def f(q, k):
            scores = q @ k.mT
            causal = torch.ones(k.size(-2), k.size(-2)).tril()
            return scores.masked_fill(causal == 0, float("-inf"))  # fails
        """,
        ("q: B H L Dk", "k: B H Lp+L Dk"),
        "`scores` and `causal == 0` don't broadcast in masked_fill: the second axis from the right is L=10 in"
        " `scores` and Lp+L=16 in `causal == 0`",
        {"scores": "B H [L] Lp+L", "causal == 0": "[Lp+L] Lp+L"},
    ),
    "fused_padding_mask": Failing(
        """
        def f(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "v: B H Lk Dk", "mask: bool B Lk"),
        "`mask` doesn't broadcast to the scores, B H Lq Lk: the second axis from the right is Lq=10 in the "
        "scores and B=2 in `mask`",
        {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dk", "mask": "[B] Lk"},
        hint="mask[:, None, None, :] makes it B H Lq Dk (tried)",
        replaces="mask",
    ),
    "fused_mask_of_numbers": Failing(
        """
        def f(q, k, v):
            mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.long).tril()
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "v: B H Lk Dk"),
        "the mask of scaled_dot_product_attention must be bool, or have the queries' dtype: `mask` is int64",
        {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dk", "mask": "Lq Lk"},
        hint="mask.bool() makes it B H Lq Dk (tried)",
        replaces="mask",
    ),
    "mask_of_numbers": Failing(
        """
        def f(scores):
            hidden = torch.ones(scores.shape[-2:], dtype=torch.long).triu(1)
            return scores.masked_fill(hidden, -1e9)  # fails
        """,
        ("scores: B H Lq Lk",),
        "the mask of masked_fill must be bool: `hidden` is int64",
        {"scores": "B H Lq Lk", "hidden": "Lq Lk"},
        hint="hidden.bool() makes it B H Lq Lk (tried)",
        replaces="hidden",
    ),
    "mask_of_minus_infinity": Failing(
        """
        def f(scores):
            hidden = torch.full(scores.shape[-2:], float("-inf")).triu(1)
            return scores.masked_fill(hidden, -1e9)  # fails
        """,
        ("scores: B H Lq Lk",),
        "the mask of masked_fill must be bool: `hidden` is float32",
        {"scores": "B H Lq Lk", "hidden": "Lq Lk"},
    ),
    "where_of_numbers": Failing(
        """
        def f(scores, keep):
            return torch.where(keep, scores, -1e9)  # fails
        """,
        ("scores: B H Lq Lk", "keep: int[2] B 1 1 Lk"),
        "the mask of where must be bool: `keep` is int64",
        {"keep": "B 1 1 Lk", "scores": "B H Lq Lk"},
        hint="keep.bool() makes it B H Lq Lk (tried)",
        replaces="keep",
    ),
    "torch_padding_mask_exchanged": Failing(
        """
        class Block(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.attn = nn.MultiheadAttention(D, H, batch_first=True)

            def forward(self, x, padding):
                out, _ = self.attn(x, x, x, key_padding_mask=padding)  # fails
                return out
        """,
        ("x: B L D", "padding: bool L B"),
        "a key padding mask has a batch axis and a key axis: axis 0 of `padding` is L=10, not 2",
        {
            "query": "L B D",
            "padding": "[L] B",
        },
        hint="padding.T works (tried)",
        replaces="padding",
        others=True,
        target="Block",
        init="D, H",
        error="AssertionError",
    ),
    "torch_mask_without_heads": Failing(
        """
        class Block(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.attn = nn.MultiheadAttention(D, H, batch_first=True)

            def forward(self, x, mask):
                out, _ = self.attn(x, x, x, attn_mask=mask)  # fails
                return out
        """,
        ("x: B L D", "mask: bool B L L"),
        "the shape of the mask must be 16 10 10, with a mask for each head of each sequence: axis 0 of `mask` is B=2",
        {
            "query": "L B D",
            "mask": "[B] L L",
        },
        hint="mask.repeat_interleave(8, dim=0) works (tried)",
        replaces="mask",
        others=True,
        target="Block",
        init="D, H",
    ),
    "torch_width": Failing(
        """
        class Block(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.attn = nn.MultiheadAttention(D, H)

            def forward(self, x):
                return self.attn(x, x, x, need_weights=False)[0]  # fails
        """,
        ("x: L B D//2",),
        "the attention was built for a width of D=512: the last axis of `x` is D//2=256",
        {
            "x": "L B [D//2]",
        },
        others=True,
        target="Block",
        init="D, H",
        error="AssertionError",
    ),
    "positions_first": Failing(
        """
        def f(x, positions):
            return x + positions  # fails
        """,
        ("x: L B D", "positions: L D"),
        "`x` and `positions` don't broadcast in add: the second axis from the right is B=2 in `x` and L=10 in"
        " `positions`",
        {"x": "L [B] D", "positions": "[L] D"},
        hint="positions[:, None, :] makes it L B D (tried)",
        replaces="positions",
    ),
    "rotation_of_another_layout": Failing(
        """
        def f(q, cos):
            return q * cos  # fails
        """,
        ("q: B L H Dk", "cos: L Dk"),
        "`q` and `cos` don't broadcast in mul: the second axis from the right is H=8 in `q` and L=10 in `cos`",
        {"q": "B L [H] Dk", "cos": "[L] Dk"},
        hint="cos[:, None, :] makes it B L H Dk (tried)",
        replaces="cos",
    ),
    "residual_of_another_length": Failing(
        """
        def f(x, y):
            y = y * 2
            return x + y  # fails
        """,
        ("x: B Lq D", "y: B Lk D"),
        "`x` and `y` don't broadcast in add: the second axis from the right is Lq=10 in `x` and Lk=16 in `y`",
        {"x": "B [Lq] D", "y": "B [Lk] D"},
    ),
    "fused_mask_for_another_layout": Failing(
        """
        def f(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, mask)  # fails
        """,
        ("q: B L H Dk", "k: B L H Dk", "v: B L H Dk", "mask: bool B L"),
        "`mask` doesn't broadcast to the scores, B L H H: the last axis is H=8 in the scores and L=10 in "
        "`mask`; the second axis from the right is H=8 in the scores and B=2 in `mask`",
        {"q": "B L H Dk", "k": "B L H Dk", "v": "B L H Dk", "mask": "[B] [L]"},
    ),
    "bias_of_heads_last": Failing(
        """
        def f(scores, bias):
            scores = scores * 1.0
            scores += bias  # fails
            return scores
        """,
        ("scores: B H L L", "bias: L L H"),
        "`scores` and `bias` don't broadcast in add: the last axis is L=10 in `scores` and H=8 in `bias`; the"
        " third axis from the right is H=8 in `scores` and L=10 in `bias`",
        {"scores": "B [H] L [L]", "bias": "[L] L [H]"},
        hint="bias.permute(2, 0, 1) makes it B H L L (tried)",
        replaces="bias",
    ),
    "mask_with_an_axis_of_one": Failing(
        """
        def attention(query, key, value, mask=None, dropout=None):
            d_k = query.size(-1)
            scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)  # fails
            p_attn = scores.softmax(dim=-1)
            return torch.matmul(p_attn, value), p_attn
        """,
        ("query: B H L Dk", "key: B H L Dk", "value: B H L Dk", "mask: bool B 1 L"),
        "`scores` and `mask == 0` don't broadcast in masked_fill: the third axis from the right is H=8 in "
        "`scores` and B=2 in `mask == 0`",
        {"scores": "B [H] L L", "mask == 0": "[B] 1 L"},
        hint="(mask == 0)[:, None, :, :] makes it B H L L (tried)",
        replaces="mask == 0",
        target="attention",
    ),
    "where_of_three": Failing(
        """
        def f(scores, mask):
            return torch.where(mask, scores, torch.full_like(scores, -1e9))  # fails
        """,
        ("scores: B H Lq Lk", "mask: bool B Lq Lk"),
        "`scores` and `mask` don't broadcast in where: the third axis from the right is H=8 in `scores` and "
        "B=2 in `mask`",
        {"mask": "[B] Lq Lk", "scores": "B [H] Lq Lk", "torch.full_like(scores, -1e9)": "B H Lq Lk"},
        hint="mask[:, None, :, :] makes it B H Lq Lk (tried)",
        replaces="mask",
    ),
    "causal_mask_of_queries_alone": Failing(
        """
        def f(q, k):
            L, S = q.size(-2), k.size(-2)
            mask = torch.ones(L, L, dtype=torch.bool).tril(0)
            bias = torch.zeros(L, S)
            bias.masked_fill_(mask.logical_not(), float("-inf"))  # fails
            return q @ k.mT + bias
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "`bias` and `mask.logical_not()` don't broadcast in masked_fill: the last axis is Lk=16 in `bias` and"
        " Lq=10 in `mask.logical_not()`",
        {"bias": "Lq [Lk]", "mask.logical_not()": "Lq [Lq]"},
    ),
    "torch_mask_of_padding": Failing(
        """
        class A(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.attn = nn.MultiheadAttention(D, H, batch_first=True)
            def forward(self, x, mask):
                return self.attn(x, x, x, attn_mask=mask)[0]  # fails
        """,
        ("x: B L D", "mask: bool B L"),
        "the shape of the mask must be 10 10: axis 0 of `mask` is B=2",
        {
            "query": "L B D",
            "mask": "[B] L",
        },
        others=True,
        target="A",
        init="D, H",
    ),
    "additive_mask_made_of_ones": Failing(
        """
        def f(scores, attention_mask):
            extended = (1.0 - attention_mask) * -10000.0
            scores = scores + extended  # fails
            return scores.softmax(-1)
        """,
        ("scores: B H L L", "attention_mask: int[2] B L"),
        "`scores` and `extended` don't broadcast in add: the second axis from the right is L=10 in `scores` "
        "and B=2 in `extended`",
        {"scores": "B H [L] L", "extended": "[B] L"},
        hint="extended[:, None, None, :] makes it B H L L (tried)",
        replaces="extended",
    ),
    "fused_padding_mask_of_numbers": Failing(
        """
        def f(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "v: B H Lk Dk", "mask: int[2] B Lk"),
        "the mask of scaled_dot_product_attention must be bool, or have the queries' dtype: `mask` is int64",
        {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dk", "mask": "B Lk"},
        hint="mask[:, None, None, :].bool() makes it B H Lq Dk (tried)",
        replaces="mask",
    ),
    "bias_of_an_embedding": Failing(
        """
        class T5(nn.Module):
            def __init__(self, H):
                super().__init__()
                self.table = nn.Embedding(32, H)
            def forward(self, scores):
                L = scores.size(-1)
                distance = (torch.arange(L)[None] - torch.arange(L)[:, None]).clamp(0, 31)
                bias = self.table(distance)
                return scores + bias  # fails
        """,
        ("scores: B H L L",),
        "`scores` and `bias` don't broadcast in add: the last axis is L=10 in `scores` and H=8 in `bias`; the"
        " third axis from the right is H=8 in `scores` and L=10 in `bias`",
        {"scores": "B [H] L [L]", "bias": "[L] L [H]"},
        hint="bias.permute(2, 0, 1) makes it B H L L (tried)",
        replaces="bias",
        target="T5",
        init="H",
    ),
    "rotation_without_heads": Failing(
        """
        def apply(q, k, cos, sin):
            q = q * cos + q.flip(-1)  # fails
            return q
        """,
        ("q: B H L Dk", "k: B H L Dk", "cos: B L Dk", "sin: B L Dk"),
        "`q` and `cos` don't broadcast in mul: the third axis from the right is H=8 in `q` and B=2 in `cos`",
        {"q": "B [H] L Dk", "cos": "[B] L Dk"},
        hint="cos[:, None, :, :] makes it B H L Dk (tried)",
        replaces="cos",
        target="apply",
    ),
    "bias_of_another_window": Failing(
        """
        class Window(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.H = H
                self.qkv = nn.Linear(D, 3 * D)
                self.bias = nn.Parameter(torch.zeros(H, 9, 9))
            def forward(self, x):
                B, N, C = x.shape
                q, k, v = self.qkv(x).reshape(B, N, 3, self.H, C // self.H).permute(2, 0, 3, 1, 4).unbind(0)
                attn = (q * C ** -0.5) @ k.transpose(-2, -1)
                attn = attn + self.bias.unsqueeze(0)  # fails
                return attn
        """,
        ("x: B L D",),
        "`attn` and `self.bias.unsqueeze(0)` don't broadcast in add: the last axis is L=10 in `attn` and 9 in"
        " `self.bias.unsqueeze(0)`; the second axis from the right is L=10 in `attn` and 9 in "
        "`self.bias.unsqueeze(0)`",
        {"attn": "B H [L] [L]", "self.bias.unsqueeze(0)": "1 H [9] [9]"},
        target="Window",
        init="D, H",
    ),
}
