"""Failures of products."""

from tests.diagnostics.failing_case import Failing

CASES = {
    "key_not_transposed": Failing(
        """
        def f(query, key):
            scores = torch.matmul(query, key) / math.sqrt(query.size(-1))  # fails
            return scores.softmax(-1)
        """,
        ("query: B H Lq Dk", "key: B H Lk Dk"),
        "the axes that matmul contracts differ: the last axis of `query` is Dk=64, the second-to-last axis of"
        " `key` is Lk=16",
        {"query": "B H Lq [Dk]", "key": "B H [Lk] Dk"},
        hint="key.transpose(-2, -1) makes it B H Lq Lk (tried)",
        replaces="key",
    ),
    "key_not_transposed_at_operator": Failing(
        """
        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads, self.head = heads, width // heads
                self.qkv = nn.Linear(width, 3 * width)

            def forward(self, x):
                B, L, D = x.shape
                q, k, v = self.qkv(x).view(B, L, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
                att = q @ k  # fails
                return att.softmax(-1)
        """,
        ("x: B L D",),
        "the axes that matmul contracts differ: the last axis of `q` is Dk=64, the second-to-last axis of `k` is L=10",
        {"q": "B H L [Dk]", "k": "B H [L] Dk"},
        hint="k.transpose(-2, -1) makes it B H L L (tried)",
        replaces="k",
        target="Attention",
        init="D, H",
    ),
    "bmm": Failing(
        """
        def f(q, k):
            return torch.bmm(q, k)  # fails
        """,
        ("q: B*H Lq Dk", "k: B*H Lk Dk"),
        "the axes that bmm contracts differ: the last axis of `q` is Dk=64, the second-to-last axis of `k` is Lk=16",
        {"q": "B*H Lq [Dk]", "k": "B*H [Lk] Dk"},
        hint="k.transpose(-2, -1) makes it B*H Lq Lk (tried)",
        replaces="k",
    ),
    "bmm_of_four_axes": Failing(
        """
        def f(q, k):
            scores = torch.bmm(q, k.transpose(-2, -1))  # fails
            return scores
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "bmm takes 3 axes: `q` has 4 axes, B H Lq Dk; `k.transpose(-2, -1)` has 4 axes, B H Dk Lk",
        {"q": "B H Lq Dk", "k.transpose(-2, -1)": "B H Dk Lk"},
        hint="torch.matmul(q, k.transpose(-2, -1)) makes it B H Lq Lk (tried)",
        replaces="torch.bmm(q, k.transpose(-2, -1))",
    ),
    "baddbmm": Failing(
        """
        def f(bias, q, k):
            return torch.baddbmm(bias, q, k, alpha=0.125)  # fails
        """,
        ("bias: B*H Lq Lk", "q: B*H Lq Dk", "k: B*H Lk Dk"),
        "the axes that baddbmm contracts differ: the last axis of `q` is Dk=64, the second-to-last axis of "
        "`k` is Lk=16",
        {"bias": "B*H Lq Lk", "q": "B*H Lq [Dk]", "k": "B*H [Lk] Dk"},
        hint="k.transpose(-2, -1) makes it B*H Lq Lk (tried)",
        replaces="k",
    ),
    "mm_of_weights": Failing(
        """
        class Project(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(3 * D, D))

            def forward(self, x):
                flat = x.flatten(0, 1)
                return torch.mm(flat, self.weight)  # fails
        """,
        ("x: B L D",),
        "the axes that mm contracts differ: the last axis of `flat` is D=512, axis 0 of `weight` is 3*D=1536",
        {"flat": "B*L [D]", "weight": "[3*D] D"},
        hint="self.weight.T makes it B*L 3*D (tried)",
        replaces="self.weight",
        target="Project",
        init="D",
    ),
    "addmm": Failing(
        """
        def f(bias, x, weight):
            return torch.addmm(bias, x, weight)  # fails
        """,
        ("bias: D", "x: L D", "weight: D Dv"),
        "`bias` doesn't broadcast to the product of `x` and `weight`, L Dv: the last axis is Dv=96 in the "
        "product and D=512 in `bias`",
        {"bias": "[D]", "x": "L D", "weight": "D Dv"},
    ),
    "value_and_weights_exchanged": Failing(
        """
        def f(q, k, v):
            weights = (q @ k.mT).softmax(-1)
            return v @ weights  # fails
        """,
        ("q: B H L Dk", "k: B H L Dk", "v: B H L Dk"),
        "the axes that matmul contracts differ: the last axis of `v` is Dk=64, the second-to-last axis of "
        "`weights` is L=10",
        {"v": "B H L [Dk]", "weights": "B H [L] L"},
        hint="weights @ v makes it B H L Dk (tried)",
        replaces="v @ weights",
    ),
    "weights_over_queries": Failing(
        """
        def f(q, k, v):
            scores = k @ q.transpose(-2, -1)
            weights = scores.softmax(-1)
            context = weights @ v  # fails
            return context
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "v: B H Lk Dv"),
        "the axes that matmul contracts differ: the last axis of `weights` is Lq=10, the second-to-last axis "
        "of `v` is Lk=16",
        {"weights": "B H Lk [Lq]", "v": "B H [Lk] Dv"},
        hint="weights.transpose(-2, -1) makes it B H Lq Dv (tried)",
        replaces="weights",
    ),
    "grouped_heads": Failing(
        """
        def f(q, k, v):
            kt = k.transpose(-2, -1)
            scores = q @ kt  # fails
            return scores
        """,
        ("q: B H L Dk", "k: B Hkv L Dk", "v: B Hkv L Dk"),
        "the batch axes of matmul differ: axis 1 of `q` is H=8, axis 1 of `kt` is Hkv=4",
        {"q": "B [H] L Dk", "kt": "B [Hkv] Dk L"},
        hint="kt.repeat_interleave(q.shape[1] // kt.shape[1], dim=1) makes it B H L L (tried)",
        replaces="kt",
    ),
    "heads_not_before_length": Failing(
        """
        def f(x, y):
            B, L, D = x.shape
            q = x.view(B, L, 8, -1)
            k = y.view(B, L, 8, -1).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(2, 3))  # fails
            return scores
        """,
        ("x: B L D", "y: B L D"),
        "the batch axes of matmul differ: axis 1 of `q` is L=10, axis 1 of `k.transpose(2, 3)` is 8",
        {"q": "B [L] 8 D//8", "k.transpose(2, 3)": "B [8] D//8 L"},
        hint="q.transpose(1, 2) makes it B 8 L L (tried)",
        replaces="q",
    ),
    "linear_of_another_width": Failing(
        """
        class Attention(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.Wqkv = nn.Linear(D, 3 * D)
                self.Wo = nn.Linear(D, D)

            def forward(self, x):
                qkv = self.Wqkv(x)
                return self.Wo(qkv)  # fails
        """,
        ("x: B L D",),
        "the axes that linear contracts differ: the last axis of `qkv` is 3*D=1536, the last axis of "
        "`Wo.weight` is D=512",
        {"qkv": "B L [3*D]", "Wo.weight": "D [D]", "Wo.bias": "D"},
        target="Attention",
        init="D, H",
    ),
    "heads_not_merged": Failing(
        """
        class Merge(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.Wo = nn.Linear(D, D)

            def forward(self, context):
                return self.Wo(context)  # fails
        """,
        ("context: B H L Dk",),
        "the axes that linear contracts differ: the last axis of `context` is Dk=64, the last axis of "
        "`Wo.weight` is H*Dk=512",
        {"context": "B H L [Dk]", "Wo.weight": "H*Dk [H*Dk]", "Wo.bias": "H*Dk"},
        hint="context.transpose(1, 2).flatten(2) makes it B L H*Dk (tried)",
        replaces="context",
        target="Merge",
        init="H*Dk",
    ),
    "functional_linear": Failing(
        """
        class Project(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(D, 3 * D))

            def forward(self, x):
                return F.linear(x, self.weight)  # fails
        """,
        ("x: B L D",),
        "the axes that linear contracts differ: the last axis of `x` is D=512, the last axis of `weight` is 3*D=1536",
        {"x": "B L [D]", "weight": "D [3*D]"},
        hint="self.weight.T makes it B L 3*D (tried)",
        replaces="self.weight",
        target="Project",
        init="D",
    ),
    "channels_first_into_linear": Failing(
        """
        class Project(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.Wq = nn.Linear(D, D)

            def forward(self, features):
                return self.Wq(features)  # fails
        """,
        ("features: B D L",),
        "the axes that linear contracts differ: the last axis of `features` is L=10, the last axis of "
        "`Wq.weight` is D=512",
        {"features": "B D [L]", "Wq.weight": "D [D]", "Wq.bias": "D"},
        hint="features.transpose(-2, -1) makes it B L D (tried)",
        replaces="features",
        target="Project",
        init="D",
    ),
    "einsum_letters": Failing(
        """
        def f(q, k):
            scores = torch.einsum("bhqd,bhdk->bhqk", q, k)  # fails
            return scores
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "the axes that einsum calls d differ: the last axis of `q` is Dk=64, the second-to-last axis of `k` is Lk=16",
        {"q": "B H Lq [Dk]", "k": "B H [Lk] Dk"},
        hint="the equation 'bhqd,bhkd->bhqk' makes it B H Lq Lk (tried)",
        replaces='"bhqd,bhdk->bhqk"',
    ),
    "einsum_number_of_letters": Failing(
        """
        def f(q, k):
            return torch.einsum("bqd,bkd->bqk", q, k)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "the term bqd names 3 axes, and `q` has 4 axes, B H Lq Dk",
        {"q": "B H Lq Dk", "k": "B H Lk Dk"},
    ),
    "einsum_heads_last": Failing(
        """
        def f(weights, value):
            return torch.einsum("bhqk,bhkd->bqhd", weights, value)  # fails
        """,
        ("weights: B H Lq Lk", "value: B Lk H Dv"),
        "the axes that einsum calls h differ: axis 1 of `weights` is H=8, axis 1 of `value` is Lk=16",
        {"weights": "B [H] Lq Lk", "value": "B [Lk] H Dv"},
        hint="the equation 'bhqk,bkhd->bqhd' makes it B Lq H Dv (tried)",
        replaces='"bhqk,bhkd->bqhd"',
    ),
    "fused_heads": Failing(
        """
        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # fails
        """,
        ("q: B H L Dk", "k: B Hkv L Dk", "v: B Hkv L Dk"),
        "the batch axes of scaled_dot_product_attention differ: axis 1 of `q` is H=8, axis 1 of `k` is Hkv=4",
        {"q": "B [H] L Dk", "k": "B [Hkv] L Dk", "v": "B Hkv L Dk"},
        hint="F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) makes it B H L Dk (tried)",
        replaces="F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
    "fused_width": Failing(
        """
        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dv", "v: B H Lk Dv"),
        "the axes that scaled_dot_product_attention contracts differ: the last axis of `q` is Dk=64, the last"
        " axis of `k` is Dv=96",
        {"q": "B H Lq [Dk]", "k": "B H Lk [Dv]", "v": "B H Lk Dv"},
    ),
    "cross_widths": Failing(
        """
        class Cross(nn.Module):
            def __init__(self, D, Dv):
                super().__init__()
                self.Wq, self.Wk = nn.Linear(D, D), nn.Linear(D, D)

            def forward(self, x, memory):
                query = self.Wq(x)
                key = self.Wk(memory)  # fails
                return query @ key.mT
        """,
        ("x: B Lq D", "memory: B Lk Dv"),
        "the axes that linear contracts differ: the last axis of `memory` is Dv=96, the last axis of "
        "`Wk.weight` is D=512",
        {"memory": "B Lk [Dv]", "Wk.weight": "D [D]", "Wk.bias": "D"},
        target="Cross",
        init="D, Dv",
    ),
    "tensordot": Failing(
        """
        def f(x, w):
            return torch.tensordot(x, w, dims=([2], [0]))  # fails
        """,
        ("x: B L D", "w: Dv D"),
        "the axes that tensordot contracts differ: the last axis of `x` is D=512, axis 0 of `w` is Dv=96",
        {"x": "B L [D]", "w": "[Dv] D"},
    ),
    "torch_keys_of_another_width": Failing(
        """
        class A(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.attn = nn.MultiheadAttention(D, H, batch_first=True)
            def forward(self, x, memory):
                return self.attn(x, memory, memory)[0]  # fails
        """,
        ("x: B Lq D", "memory: B Lk Dv"),
        "the axes that linear contracts differ: the last axis of `k` is Dv=96, the last axis of `w_kv` is D=512",
        {"k": "Lk B [Dv]", "w_kv": "2*D [D]"},
        others=True,
        target="A",
        init="D, H",
    ),
    "baddbmm_of_a_transposed_bias": Failing(
        """
        def f(q, k, mask):
            return torch.baddbmm(mask, q, k.mT)  # fails
        """,
        ("q: B Lq Dk", "k: B Lk Dk", "mask: B Lk Lq"),
        "`mask` doesn't broadcast to the product of `q` and `k.mT`, B Lq Lk: the last axis is Lk=16 in the "
        "product and Lq=10 in `mask`; the second axis from the right is Lq=10 in the product and Lk=16 in "
        "`mask`",
        {"mask": "B [Lk] [Lq]", "q": "B Lq Dk", "k.mT": "B Dk Lk"},
        hint="mask.transpose(-2, -1) makes it B Lq Lk (tried)",
        replaces="mask",
    ),
    "one_head_at_a_time": Failing(
        """
        def f(q, k, v):
            outs = []
            for h in range(q.size(1)):
                s = q[:, h] @ k[:, h]  # fails
                outs.append(s)
            return torch.stack(outs)
        """,
        ("q: B H L Dk", "k: B H L Dk", "v: B H L Dk"),
        "the axes that matmul contracts differ: the last axis of `q[:, h]` is Dk=64, the second-to-last axis "
        "of `k[:, h]` is L=10",
        {"q[:, h]": "B L [Dk]", "k[:, h]": "B [L] Dk"},
        hint="k[:, h].transpose(-2, -1) makes it B L L (tried)",
        replaces="k[:, h]",
    ),
    "whole_module_without_contiguous": Failing(
        """
        class CausalSelfAttention(nn.Module):
            def __init__(self, n_embd, n_head):
                super().__init__()
                self.c_attn = nn.Linear(n_embd, 3 * n_embd)
                self.c_proj = nn.Linear(n_embd, n_embd)
                self.n_head, self.n_embd = n_head, n_embd
                self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))
            def forward(self, x):
                B, T, C = x.size()
                q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
                k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
                att = F.softmax(att, dim=-1)
                y = att @ v
                y = y.transpose(1, 2).view(B, T, C)  # fails
                return self.c_proj(y)
        """,
        ("x: B L D",),
        "view can't join H and Dk, which aren't adjacent in memory: step 17 (model.py:25) made "
        "`y.transpose(1, 2)` non-contiguous",
        {"y.transpose(1, 2)": "B L [H] [Dk]"},
        hint="y.transpose(1, 2).reshape(B, T, C) makes it B L D (tried)",
        replaces="y.transpose(1, 2).view(B, T, C)",
        target="CausalSelfAttention",
        init="D, H",
    ),
    "rows_in_a_comprehension": Failing(
        """
        def f(x, w):
            return [row @ w for row in x]  # fails
        """,
        ("x: B L D", "w: Dv D"),
        "the axes that matmul contracts differ: the last axis of `row` is D=512, axis 0 of `w` is Dv=96",
        {"row": "L [D]", "w": "[Dv] D"},
        hint="w.T makes it L Dv (tried)",
        replaces="w",
    ),
    "one_operand_twice": Failing(
        """
        def f(x):
            return x @ x  # fails
        """,
        ("x: B L D",),
        "the axes that matmul contracts differ: the last axis of `x` is D=512, the second-to-last axis of `x` is L=10",
        {"x": "B [L] [D]"},
    ),
    "inside_a_sequential": Failing(
        """
        class Block(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.norm = nn.LayerNorm(D)
                self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(D, D))
            def forward(self, x):
                return x + self.ff(self.norm(x))  # fails
        """,
        ("x: B L D",),
        "the axes that linear contracts differ: the last axis of `input` is 4*D=2048, the last axis of "
        "`ff.2.weight` is D=512",
        {"input": "B L [4*D]", "ff.2.weight": "D [D]", "ff.2.bias": "D"},
        target="Block",
        init="D",
    ),
    "key_transposed_twice": Failing(
        """
        def f(query, key):
            scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))  # fails
            return scores
        """,
        ("query: B H Lq Dk", "key: B H Dk Lk"),
        "the axes that matmul contracts differ: the last axis of `query` is Dk=64, the second-to-last axis of"
        " `key.transpose(-2, -1)` is Lk=16",
        {"query": "B H Lq [Dk]", "key.transpose(-2, -1)": "B H [Lk] Dk"},
        hint="key makes it B H Lq Lk (tried)",
        replaces="key.transpose(-2, -1)",
    ),
    "values_not_repeated": Failing(
        """
        def repeat_kv(x, n):
            B, heads, L, width = x.shape
            return x[:, :, None].expand(B, heads, n, L, width).reshape(B, -1, L, width)
        def f(q, k, v):
            k = repeat_kv(k, 2)
            w = torch.softmax(q @ k.transpose(2, 3), dim=-1)
            return torch.matmul(w, v)  # fails
        """,
        ("q: B H L Dk", "k: B Hkv L Dk", "v: B Hkv L Dk"),
        "the batch axes of matmul differ: axis 1 of `w` is H=8, axis 1 of `v` is Hkv=4",
        {"w": "B [H] L L", "v": "B [Hkv] L Dk"},
        hint="v.repeat_interleave(w.shape[1] // v.shape[1], dim=1) makes it B H L Dk (tried)",
        replaces="v",
    ),
    "part_of_a_longer_expression": Failing(
        """
        def f(q, k):
            return torch.matmul(q.transpose(1, 2), k.transpose(1, 2)).softmax(-1)  # fails
        """,
        ("q: B L H Dk", "k: B L H Dk"),
        "the axes that matmul contracts differ: the last axis of `q.transpose(1, 2)` is Dk=64, the "
        "second-to-last axis of `k.transpose(1, 2)` is L=10",
        {"q.transpose(1, 2)": "B H L [Dk]", "k.transpose(1, 2)": "B H [L] Dk"},
        hint="k.transpose(1, 2).transpose(-2, -1) makes it B H L L (tried)",
        replaces="k.transpose(1, 2)",
    ),
    "arguments_by_keyword": Failing(
        """
        def f(q, k):
            return torch.matmul(input=q, other=k)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "the axes that matmul contracts differ: the last axis of `q` is Dk=64, the second-to-last axis of `k` is Lk=16",
        {"q": "B H Lq [Dk]", "k": "B H [Lk] Dk"},
        hint="k.transpose(-2, -1) makes it B H Lq Lk (tried)",
        replaces="k",
    ),
    "method": Failing(
        """
        def f(q, k):
            return q.matmul(k)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "the axes that matmul contracts differ: the last axis of `q` is Dk=64, the second-to-last axis of `k` is Lk=16",
        {"q": "B H Lq [Dk]", "k": "B H [Lk] Dk"},
        hint="k.transpose(-2, -1) makes it B H Lq Lk (tried)",
        replaces="k",
    ),
    "einsum_of_three": Failing(
        """
        def f(q, k, v):
            return torch.einsum("bhqd,bhkd,bkhe->bhqe", q, k, v)  # fails
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk", "v: B H Lk Dv"),
        "the axes that einsum calls k differ: the second-to-last axis of `k` is Lk=16, axis 1 of `v` is H=8",
        {"q": "B H Lq Dk", "k": "B H [Lk] Dk", "v": "B [H] Lk Dv"},
        hint="the equation 'bhqd,bhkd,bhke->bhqe' makes it B H Lq Dv (tried)",
        replaces='"bhqd,bhkd,bkhe->bhqe"',
    ),
    "dot": Failing(
        """
        def f(x, y):
            return torch.dot(x, y)  # fails
        """,
        ("x: L", "y: Lk"),
        "the axes that dot contracts differ: the last axis of `x` is L=10, the last axis of `y` is Lk=16",
        {"x": "[L]", "y": "[Lk]"},
    ),
}
