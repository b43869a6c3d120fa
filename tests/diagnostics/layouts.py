"""Failures of views, splits, concatenations and copies."""

from tests.diagnostics.failing_case import Failing

CASES = {
    "head_width_written_as_a_number": Failing(
        """
        def f(x):
            B, L, D = x.shape
            return x.view(B, L, 8, 10)  # fails
        """,
        ("x: B L D",),
        "view keeps the number of elements: `x` has B*L*D = 10,240 elements, the new shape has B*L*8*10 = 1,600",
        {"x": "B L [D]"},
    ),
    "heads_that_do_not_divide": Failing(
        """
        class Split(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.H, self.Dk = H, D // H
                self.Wq = nn.Linear(D, D)

            def forward(self, x):
                B, L, _ = x.shape
                query = self.Wq(x)
                heads = query.view(B, L, self.H, self.Dk)  # fails
                return heads.transpose(1, 2)
        """,
        ("x: B L D",),
        "view keeps the number of elements: "
        "`query` has B*L*D = 2,000 elements, the new shape has B*L*H*12 = 1,920; "
        "D=100 isn't a multiple of H=8",
        {"query": "B L [D]"},
        target="Split",
        init="D, H",
        options=("--d-model", "100"),
    ),
    "wrong_number_with_one_inferred": Failing(
        """
        def f(x):
            return x.reshape(x.size(0), -1, 7)  # fails
        """,
        ("x: B L D",),
        "reshape keeps the number of elements: `x` has B*L*D = 10,240 elements, which isn't a multiple of 14",
        {"x": "B [L] [D]"},
    ),
    "merge_to_the_heads_width": Failing(
        """
        def f(context):
            B, H, L, Dk = context.shape
            return context.transpose(1, 2).reshape(B, L, Dk)  # fails
        """,
        ("context: B H L Dk",),
        "reshape keeps the number of elements: "
        "`context.transpose(1, 2)` has B*L*H*Dk = 10,240 elements, the new shape has B*L*Dk = 1,280",
        {"context.transpose(1, 2)": "B L [H] Dk"},
        hint="context.transpose(1, 2).reshape(B, L, -1) makes it B L H*Dk (tried)",
        replaces="context.transpose(1, 2).reshape(B, L, Dk)",
    ),
    "merge_without_contiguous": Failing(
        """
        def f(q, k, v):
            B, H, L, Dk = q.shape
            context = (q @ k.mT).softmax(-1) @ v
            merged = context.transpose(1, 2)
            return merged.view(B, L, H * Dk)  # fails
        """,
        ("q: B H L Dk", "k: B H L Dk", "v: B H L Dk"),
        "view can't join H and Dk, which aren't adjacent in memory: step 5, context.transpose(1, 2) "
        "(model.py:11), made `merged` non-contiguous",
        {"merged": "B L [H] [Dk]"},
        hint="merged.reshape(B, L, H * Dk) makes it B L H*Dk (tried)",
        replaces="merged.view(B, L, H * Dk)",
    ),
    "merge_without_contiguous_in_one_line": Failing(
        """
        def f(context):
            return context.transpose(1, 2).view(context.size(0), -1, 8 * context.size(3))  # fails
        """,
        ("context: B 8 L Dk",),
        "view can't join 8 and Dk, which aren't adjacent in memory: step 1 (model.py:9) made "
        "`context.transpose(1, 2)` non-contiguous",
        {"context.transpose(1, 2)": "B L [8] [Dk]"},
        hint="context.transpose(1, 2).reshape(context.size(0), -1, 8 * context.size(3)) makes it B L 8*Dk (tried)",
        replaces="context.transpose(1, 2).view(context.size(0), -1, 8 * context.size(3))",
    ),
    "view_of_permuted_input": Failing(
        """
        def f(x):
            images = x.permute(0, 2, 1)
            copies = images * 2
            return copies.view(-1)  # fails
        """,
        ("x: B L D",),
        "view can't join B, D and L, which aren't adjacent in memory: step 1, x.permute(0, 2, 1) "
        "(model.py:9), made `copies` non-contiguous",
        {"copies": "[B] [D] [L]"},
        hint="copies.reshape(-1) makes it B*L*D (tried)",
        replaces="copies.view(-1)",
    ),
    "unflatten": Failing(
        """
        def f(x):
            return x.unflatten(-1, (8, 60))  # fails
        """,
        ("x: B L D",),
        "the product of the sizes is 480: the last axis of `x` is D=512; D=512 isn't a multiple of 60",
        {"x": "B L [D]"},
    ),
    "split_sizes": Failing(
        """
        def f(qkv, D):
            q, kv = qkv.split([D, D], dim=-1)  # fails
            return q
        """,
        ("qkv: B L 3*D",),
        "the sizes of the split, 512 and 512, add up to 1,024: the last axis of `qkv` is 3*D=1536",
        {"qkv": "B L [3*D]"},
        options=("--with", "D=D"),
    ),
    "split_into_too_many": Failing(
        """
        def f(qkv):
            q, k, v = qkv.split(64, dim=-1)  # fails
            return q
        """,
        ("qkv: B L 3*D",),
        "split returns 24 tensors, B L 64, which are unpacked into 3 names",
        {"qkv": "B L 3*D"},
        error="ValueError",
    ),
    "chunks_of_a_width_that_does_not_divide": Failing(
        """
        def f(x):
            q, k, v = x.chunk(3, dim=-1)
            return q @ v.mT  # fails
        """,
        ("x: B L D",),
        "the axes that matmul contracts differ: the last axis of `q` is -(-D//3)=171, the second-to-last axis"
        " of `v.mT` is D-2*(-(-D//3))=170; step 1, x.chunk(3, dim=-1), returns parts of 171, 171 and 170",
        {"q": "B L [-(-D//3)]", "v.mT": "B [D-2*(-(-D//3))] L"},
    ),
    "unpacked_shape": Failing(
        """
        def f(x):
            B, L, D = x.shape  # fails
            return x
        """,
        ("x: B H L Dk",),
        "`x` has 4 axes, B H L Dk: its sizes are unpacked into 3 names",
        {"x": "B H L Dk"},
        error="ValueError",
    ),
    "unpacked_size_of_too_few": Failing(
        """
        def f(x):
            scaled = x * 2
            B, H, L, D = scaled.size()  # fails
            return x
        """,
        ("x: B L D",),
        "`scaled` has 3 axes, B L D: its sizes are unpacked into 4 names",
        {"scaled": "B L D"},
        error="ValueError",
    ),
    "unpacked_tensor": Failing(
        """
        def f(qkv):
            q, k, v = qkv  # fails
            return q
        """,
        ("qkv: B L D",),
        "`qkv` is unpacked into 3 names: axis 0 of `qkv` is B=2",
        {"qkv": "[B] L D"},
        error="ValueError",
    ),
    "assertion_of_heads": Failing(
        """
        class Attention(nn.Module):
            def __init__(self, H):
                super().__init__()
                self.H = H

            def forward(self, x):
                D = x.shape[-1]
                assert D % self.H == 0  # fails
                return x
        """,
        ("x: B L D",),
        "the assertion doesn't hold: D is 100 and self.H is 8; D leaves 4 when divided by self.H",
        {},
        target="Attention",
        init="H",
        options=("--d-model", "100"),
        error="AssertionError",
    ),
    "cache_of_other_heads": Failing(
        """
        def f(past, key):
            keys = torch.cat([past, key], dim=2)  # fails
            return keys
        """,
        ("past: B H Lp Dk", "key: B Hkv L Dk"),
        "cat needs equal sizes in all axes except the second-to-last axis: axis 1 is H=8 in `past` and Hkv=4 in `key`",
        {"past": "B [H] Lp Dk", "key": "B [Hkv] L Dk"},
    ),
    "cache_along_the_heads": Failing(
        """
        def f(past, key):
            keys = torch.cat((past, key), dim=1)  # fails
            return keys
        """,
        ("past: B H Lp Dk", "key: B H L Dk"),
        "cat needs equal sizes in all axes except axis 1: the second-to-last axis is Lp=6 in `past` and L=10 in `key`",
        {"past": "B H [Lp] Dk", "key": "B H [L] Dk"},
        hint="torch.cat((past, key), dim=2) makes it B H Lp+L Dk (tried)",
        replaces="torch.cat((past, key), dim=1)",
    ),
    "cache_of_another_layout": Failing(
        """
        def f(past, key):
            return torch.cat((past, key), dim=2)  # fails
        """,
        ("past: B H Lp Dk", "key: B L H Dk"),
        "cat needs equal sizes in all axes except the second-to-last axis: axis 1 is H=8 in `past` and L=10 in `key`",
        {"past": "B [H] Lp Dk", "key": "B [L] H Dk"},
        hint="key.transpose(1, 2) makes it B H Lp+L Dk (tried)",
        replaces="key",
    ),
    "cat_of_ranks": Failing(
        """
        def f(x, token):
            return torch.cat((token, x), dim=1)  # fails
        """,
        ("x: B L D", "token: B D"),
        "cat needs equal numbers of axes: `token` has 2 axes, B D; `x` has 3 axes, B L D",
        {"token": "B D", "x": "B L D"},
        hint="token.unsqueeze(1) makes it B L+1 D (tried)",
        replaces="token",
    ),
    "stack": Failing(
        """
        def f(key, value):
            return torch.stack((key, value))  # fails
        """,
        ("key: B H L Dk", "value: B H L Dv"),
        "stack needs equal sizes in all axes: the last axis is Dk=64 in `key` and Dv=96 in `value`",
        {"key": "B H L [Dk]", "value": "B H L [Dv]"},
    ),
    "cache_written_in_place": Failing(
        """
        def f(cache, key):
            cache = cache + 0
            cache[:, :, 0:3] = key  # fails
            return cache
        """,
        ("cache: B H Lp Dk", "key: B H L Dk"),
        "`key` doesn't fit into the part of `cache` that it is assigned to: the second axis from the right is"
        " 3 in that part and L=10 in `key`",
        {"cache": "B H [Lp] Dk", "key": "B H [L] Dk"},
    ),
    "expand_of_heads": Failing(
        """
        def f(x):
            B, L, D = x.shape
            return x.expand(B, 8, L, D)  # fails
        """,
        ("x: B L D",),
        "expand only expands axes of size 1: the third axis from the right of `x` is B=2 and can't become 8",
        {"x": "[B] L D"},
        hint="x.unsqueeze(1) makes it B 8 L D (tried)",
        replaces="x",
    ),
    "expand_of_grouped_heads": Failing(
        """
        def f(key, H):
            B, Hkv, L, Dk = key.shape
            return key.expand(B, H, L, Dk)  # fails
        """,
        ("key: B Hkv L Dk",),
        "expand only expands axes of size 1: the third axis from the right of `key` is Hkv=4 and can't become H=8",
        {"key": "B [Hkv] L Dk"},
        options=("--with", "H=H"),
    ),
    "repeat": Failing(
        """
        def f(key):
            return key.repeat(1, 2)  # fails
        """,
        ("key: B L Dk",),
        "`key` has 3 axes, B L Dk: repeat is given 2 sizes",
        {"key": "B L Dk"},
    ),
    "head_width_of_another_model": Failing(
        """
        class Split(nn.Module):
            def __init__(self, H):
                super().__init__()
                self.H = H

            def forward(self, x):
                B, L, D = x.shape
                q = x.view(  # fails
                    B,  # sequences
                    L,
                    self.H,
                    10,
                ).transpose(1, 2)
                return q
        """,
        ("x: B L H*Dk",),
        "view keeps the number of elements: `x` has B*L*H*Dk = 10,240 elements, the new shape has B*L*H*10 = 1,600",
        {"x": "B L [H*Dk]"},
        hint="x.view(B, L, self.H, -1) makes it B L H Dk (tried)",
        replaces="""x.view(  # fails
            B,  # sequences
            L,
            self.H,
            10,
        )""",
        target="Split",
        init="H",
    ),
    "assertion_with_a_message": Failing(
        """
        def f(q, k):
            assert q.shape[-1] == k.size(-1) and q.shape[0] == k.shape[0], "widths"  # fails
            return q @ k.mT
        """,
        ("q: B H Lq Dk", "k: B H Lk Dv"),
        "the assertion doesn't hold: q.shape[-1] is 64, k.size(-1) is 96, q.shape[0] is 2 and k.shape[0] is 2",
        {"q": "B H Lq Dk", "k": "B H Lk Dv"},
        error="AssertionError",
    ),
    "softmax_of_whole_numbers": Failing(
        """
        def f(scores):
            return torch.softmax(scores, dim=-1)  # fails
        """,
        ("scores: int B H Lq Lk",),
        "softmax isn't implemented for int64, the dtype of `scores`",
        {"scores": "B H Lq Lk"},
        hint="scores.float() makes it B H Lq Lk (tried)",
        replaces="scores",
        error="NotImplementedError",
    ),
    "boolean_index_of_another_shape": Failing(
        """
        def f(x, keep):
            return x[keep]  # fails
        """,
        ("x: B L D", "keep: bool L B"),
        "a boolean mask must have the sizes of the axes that it indexes: `keep` has L=10 for B=2, B=2 for L=10 of `x`",
        {"x": "[B] [L] D", "keep": "[L] [B]"},
        hint="keep.T works (tried)",
        replaces="keep",
        error="IndexError",
    ),
    "pattern_that_does_not_divide": Failing(
        """
        from einops import rearrange
        def f(x):
            return rearrange(x, 'b l (h d) -> b h l d', h=7)  # fails
        """,
        ("x: B L D",),
        "D=512 of `x` isn't a multiple of 7",
        {"x": "B L [D]"},
        error="EinopsError",
    ),
    "written_into_a_smaller_part": Failing(
        """
        def f(cache, k):
            cache = cache.clone()
            cache[:, 2] = k  # fails
            return cache
        """,
        ("cache: B H Lp Dk", "k: B H L Dk"),
        "`k` has 4 axes, B H L Dk: the part of `cache` that it is assigned to has 3 axes",
        {"cache": "B H Lp Dk", "k": "B H L Dk"},
    ),
    "cache_along_the_width": Failing(
        """
        def f(k, v, past_k):
            k = torch.cat((past_k, k), dim=-1)  # fails
            return k
        """,
        ("k: B H L Dk", "v: B H L Dk", "past_k: B H Lp Dk"),
        "cat needs equal sizes in all axes except the last axis: the second-to-last axis is Lp=6 in `past_k` "
        "and L=10 in `k`",
        {"past_k": "B H [Lp] Dk", "k": "B H [L] Dk"},
        hint="torch.cat((past_k, k), dim=-2) makes it B H Lp+L Dk (tried)",
        replaces="torch.cat((past_k, k), dim=-1)",
    ),
    "sizes_in_a_variable": Failing(
        """
        def f(x):
            shape = (x.size(0), x.size(1), 7, 7)
            return x.view(*shape)  # fails
        """,
        ("x: B L D",),
        "view keeps the number of elements: `x` has B*L*D = 10,240 elements, the new shape has B*L*7*7 = 980",
        {"x": "B L [D]"},
    ),
    "token_of_one_sequence": Failing(
        """
        class A(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.cls = nn.Parameter(torch.zeros(1, 1, D))
                self.pos = nn.Parameter(torch.zeros(1, 10, D))
            def forward(self, x):
                x = torch.cat((self.cls, x), dim=1)  # fails
                return x + self.pos
        """,
        ("x: B L D",),
        "cat needs equal sizes in all axes except the second-to-last axis: axis 0 is 1 in `cls` and B=2 in `x`",
        {"cls": "[1] 1 D", "x": "[B] L D"},
        target="A",
        init="D",
    ),
    "length_left_out": Failing(
        """
        def f(x, H):
            B, L, D = x.shape
            return x.reshape(B, H, D // H).transpose(1, 2)  # fails
        """,
        ("x: B L D",),
        "reshape keeps the number of elements: `x` has B*L*D = 10,240 elements, the new shape has B*H*Dk = 1,024",
        {"x": "B [L] [D]"},
        options=("--with", "H=H"),
    ),
    "shape_by_keyword": Failing(
        """
        def f(x):
            return torch.reshape(input=x, shape=(2, 3, 4))  # fails
        """,
        ("x: B L D",),
        "reshape keeps the number of elements: `x` has B*L*D = 10,240 elements, the new shape has 24",
        {"x": "B [L] [D]"},
    ),
}
