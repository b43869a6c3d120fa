"""Failures of dtypes, devices, axes and indices, of layers of another width, and in plain Python."""

from tests.diagnostics.failing_case import Failing

CASES = {
    "half_keys": Failing(
        """
        def f(q, k):
            k = k.half()
            scores = q @ k.transpose(-2, -1)  # fails
            return scores
        """,
        ("q: B H Lq Dk", "k: B H Lk Dk"),
        "the operands of matmul have different dtypes: `q` is float32 and `k.transpose(-2, -1)` is float16",
        {"q": "B H Lq Dk", "k.transpose(-2, -1)": "B H Dk Lk"},
        hint="k.transpose(-2, -1).float() makes it B H Lq Lk (tried)",
        replaces="k.transpose(-2, -1)",
    ),
    "half_input_of_a_layer": Failing(
        """
        class Project(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.Wq = nn.Linear(D, D)

            def forward(self, x):
                x = x.to(torch.bfloat16)
                return self.Wq(x)  # fails
        """,
        ("x: B L D",),
        "the operands of linear have different dtypes: `x` is bfloat16 and `Wq.weight` is float32",
        {"x": "B L D", "Wq.weight": "D D", "Wq.bias": "D"},
        hint="x.float() makes it B L D (tried)",
        replaces="x",
        target="Project",
        init="D",
    ),
    "weights_of_whole_numbers": Failing(
        """
        def f(counts, value):
            return counts @ value  # fails
        """,
        ("counts: int[5] B H Lq Lk", "value: B H Lk Dv"),
        "the operands of matmul have different dtypes: `counts` is int64 and `value` is float32",
        {"counts": "B H Lq Lk", "value": "B H Lk Dv"},
        hint="counts.float() makes it B H Lq Dv (tried)",
        replaces="counts",
    ),
    "weights_in_float_values_in_bfloat": Failing(
        """
        def f(q, k, v):
            weights = torch.softmax(q @ k.mT, dim=-1, dtype=torch.float32)
            return weights @ v  # fails
        """,
        ("q: B H L Dk", "k: B H L Dk", "v: B H L Dk"),
        "the operands of matmul have different dtypes: `weights` is float32 and `v` is bfloat16",
        {"weights": "B H L L", "v": "B H L Dk"},
        hint="weights.bfloat16() makes it B H L Dk (tried)",
        replaces="weights",
        options=("--dtype", "bfloat16"),
    ),
    "embedding_of_floats": Failing(
        """
        class Embed(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.tokens = nn.Embedding(50, D)

            def forward(self, ids):
                return self.tokens(ids)  # fails
        """,
        ("ids: B L",),
        "the indices of embedding must be integers: `ids` is float32",
        {"ids": "B L", "tokens.weight": "50 D"},
        target="Embed",
        init="D",
    ),
    "mask_on_another_device": Failing(
        """
        def f(scores):
            mask = torch.zeros(scores.size(-2), scores.size(-1), dtype=torch.bool, device="cpu")
            return scores.masked_fill(mask, -1e9)  # fails
        """,
        ("scores: B H Lq Lk",),
        "the operands of masked_fill are on different devices: `scores` is on meta and `mask` is on cpu",
        {"scores": "B H Lq Lk", "mask": "Lq Lk"},
        hint="mask.to(scores.device) makes it B H Lq Lk (tried)",
        replaces="mask",
        options=("--device", "meta"),
    ),
    "positions_on_meta": Failing(
        """
        def f(x):
            positions = torch.zeros(x.size(-2), x.size(-1), device="meta")
            return x + positions  # fails
        """,
        ("x: B L D",),
        "the operands of add are on different devices: `x` is on cpu and `positions` is on meta",
        {"x": "B L D", "positions": "L D"},
    ),
    "transpose_of_three_axes": Failing(
        """
        def f(x):
            return x.transpose(1, 3)  # fails
        """,
        ("x: B L D",),
        "`x` has 3 axes, B L D: transpose is given axis 3, which doesn't exist",
        {"x": "B L D"},
        error="IndexError",
    ),
    "permute_of_three_axes": Failing(
        """
        def f(x):
            return x.permute(0, 2, 1, 3)  # fails
        """,
        ("x: B L D",),
        "`x` has 3 axes, B L D: permute is given 4 axes",
        {"x": "B L D"},
    ),
    "softmax_over_an_axis_too_many": Failing(
        """
        def f(scores):
            return torch.softmax(scores, dim=3)  # fails
        """,
        ("scores: B Lq Lk",),
        "`scores` has 3 axes, B Lq Lk: softmax is given axis 3, which doesn't exist",
        {"scores": "B Lq Lk"},
        error="IndexError",
    ),
    "too_many_indices": Failing(
        """
        def f(x):
            last = x[:, -1, :, 0]  # fails
            return last
        """,
        ("x: B L D",),
        "`x` has 3 axes, B L D, and the index names more",
        {"x": "B L D"},
        error="IndexError",
    ),
    "convolution_of_four_axes": Failing(
        """
        class Conv(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.conv = nn.Conv1d(D, D, 3)

            def forward(self, x):
                return self.conv(x)  # fails
        """,
        ("x: B H L D",),
        "`x` has 4 axes, B H L D: conv1d takes 2D (unbatched) or 3D (batched) input",
        {"x": "B H L D", "conv.weight": "D D 3", "conv.bias": "D"},
        target="Conv",
        init="D",
    ),
    "convolution_of_channels_last": Failing(
        """
        class Conv(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.conv = nn.Conv1d(D, D, 1)

            def forward(self, x):
                return self.conv(x)  # fails
        """,
        ("x: B L D",),
        "conv1d takes D=512 channels: axis 1 of `x` is L=10",
        {"x": "B [L] D", "conv.weight": "D [D] 1", "conv.bias": "D"},
        hint="x.transpose(1, 2) makes it B D L (tried)",
        replaces="x",
        target="Conv",
        init="D",
    ),
    "norm_of_a_head": Failing(
        """
        class Norm(nn.Module):
            def __init__(self, Dk):
                super().__init__()
                self.norm = nn.LayerNorm(Dk)

            def forward(self, x):
                return self.norm(x)  # fails
        """,
        ("x: B L D",),
        "layer_norm normalizes a width of Dk=64: the last axis of `x` is D=512",
        {"x": "B L [D]", "norm.weight": "Dk", "norm.bias": "Dk"},
        target="Norm",
        init="D//H",
        options=("--heads", "8"),
    ),
    "token_beyond_the_table": Failing(
        """
        class Embed(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.tokens = nn.Embedding(50, D)

            def forward(self, ids):
                return self.tokens(ids)  # fails
        """,
        ("ids: int[500] B L",),
        "`ids` contains 497: the table `tokens.weight` has 50 rows, 0 to 49",
        {"ids": "B L", "tokens.weight": "[50] D"},
        target="Embed",
        init="D",
        error="IndexError",
    ),
    "positions_beyond_the_table": Failing(
        """
        class Positions(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.table = nn.Embedding(16, D)

            def forward(self, x):
                at = torch.arange(x.size(1))
                return x + self.table(at)  # fails
        """,
        ("x: B L D",),
        "`at` contains 39: the table `table.weight` has 16 rows, 0 to 15",
        {"at": "L", "table.weight": "[16] D"},
        target="Positions",
        init="D",
        options=("--length", "40"),
        error="IndexError",
    ),
    "index_beyond_the_axis": Failing(
        """
        def f(x):
            return x[:, 99]  # fails
        """,
        ("x: B L D",),
        "the index is 99: the second-to-last axis of `x` is L=10, so its indices are 0 to 9",
        {"x": "B [L] D"},
        error="IndexError",
    ),
    "relative_positions_beyond_the_table": Failing(
        """
        def f(table, L):
            at = torch.arange(L)
            distances = at[None, :] - at[:, None] + L
            return table[distances]  # fails
        """,
        ("table: L H",),
        "`distances` contains 19: axis 0 of `table` is L=10, so its indices are 0 to 9",
        {"table": "[L] H", "distances": "L L"},
        options=("--with", "L=L"),
        error="IndexError",
    ),
    "gather_beyond_the_axis": Failing(
        """
        def f(x):
            index = torch.full(x.shape, x.size(1))
            return x.gather(1, index)  # fails
        """,
        ("x: B L D",),
        "`index` contains 10: the second-to-last axis of `x` is L=10, so its indices are 0 to 9",
        {"x": "B [L] D", "index": "B L D"},
    ),
    "index_select_beyond_the_axis": Failing(
        """
        def f(x):
            index = torch.arange(4) + x.size(1)
            return x.index_select(1, index)  # fails
        """,
        ("x: B L D",),
        "`index` contains 13: the second-to-last axis of `x` is L=10, so its indices are 0 to 9",
        {"x": "B [L] D", "index": "4"},
    ),
    "narrowed_cache": Failing(
        """
        def f(cache):
            return cache.narrow(2, 4, cache.size(2))  # fails
        """,
        ("cache: B H Lp Dk",),
        "narrow reads 4 to 9: the second-to-last axis of `cache` is Lp=6, so its indices are 0 to 5",
        {"cache": "B H [Lp] Dk"},
    ),
    "missing_attribute": Failing(
        """
        class Attention(nn.Module):
            def forward(self, x):
                y = x * 2
                return self.Wq(y)  # fails
        """,
        ("x: B L D",),
        None,
        {},
        target="Attention",
        init="",
        error="AttributeError",
    ),
    "missing_key": Failing(
        """
        def f(x):
            config = {"heads": 8}
            return x * config["width"]  # fails
        """,
        ("x: B L D",),
        None,
        {},
        error="KeyError",
    ),
    "none_in_an_operation": Failing(
        """
        def f(x, mask=None):
            scores = x @ x.mT
            return scores + mask  # fails
        """,
        ("x: B L D",),
        None,
        {},
        error="TypeError",
    ),
    "missing_argument": Failing(
        """
        class A(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = B()
            def forward(self, x):
                return self.inner(x)  # fails
        class B(nn.Module):
            def forward(self, x, y):
                return x
        """,
        ("x: B L D",),
        None,
        {},
        target="A",
        init="",
        error="TypeError",
    ),
    "torch_layer_of_another_width": Failing(
        """
        class A(nn.Module):
            def __init__(self, D, H):
                super().__init__()
                self.layer = nn.TransformerEncoderLayer(D, H, batch_first=True)
            def forward(self, x):
                return self.layer(x)  # fails
        """,
        ("x: B L 2*D",),
        "the attention was built for a width of D=512: the last axis of `query` is 2*D=1024",
        {
            "query": "L B [2*D]",
        },
        others=True,
        target="A",
        init="D, H",
        error="AssertionError",
    ),
    "norm_of_channels_first": Failing(
        """
        class A(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.conv = nn.Conv1d(D, D, 3, padding=1)
                self.norm = nn.LayerNorm(D)
            def forward(self, x):
                y = self.conv(x.transpose(1, 2))
                return self.norm(y)  # fails
        """,
        ("x: B L D",),
        "layer_norm normalizes a width of D=512: the last axis of `y` is L=10",
        {"y": "B D [L]", "norm.weight": "D", "norm.bias": "D"},
        hint="y.transpose(1, 2) makes it B L D (tried)",
        replaces="y",
        target="A",
        init="D",
    ),
    "double_weights": Failing(
        """
        def f(x, w):
            return x @ w.double()  # fails
        """,
        ("x: B L D", "w: D Dv"),
        "the operands of matmul have different dtypes: `x` is float32 and `w.double()` is float64",
        {"x": "B L D", "w.double()": "D Dv"},
        hint="w.double().float() makes it B L Dv (tried)",
        replaces="w.double()",
    ),
    "gather_of_another_rank": Failing(
        """
        def f(x, index):
            return torch.gather(x, dim=2, index=index)  # fails
        """,
        ("x: B L D", "index: int[4] B L"),
        "the index of gather must have as many axes as the tensor that it indexes: `x` has 3 axes, B L D, "
        "`index` has 2 axes, B L",
        {"x": "B L D", "index": "B L"},
    ),
}
