"""Which functions and classes are found as attention, by their source alone."""

import textwrap
from pathlib import Path

import pytest

from attnshape.discovery.files import find_targets
from attnshape.discovery.project import find_attention

ATTENTION = {
    "matrix products": """
        def attend(q, k, v):
            scores = q @ k.transpose(-2, -1)
            return scores.softmax(dim=-1) @ v
        """,
    "functional softmax over several statements": """
        def attend(q, k, v, mask):
            scores = torch.matmul(q, k.mT) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~mask, -math.inf)
            weights = F.softmax(scores, dim=-1)
            weights = F.dropout(weights, 0.1)
            return torch.matmul(weights, v)
        """,
    "softmax made where it is called": """
        def attend(q, k, v):
            return nn.Softmax(dim=-1)(q @ k.mT) @ v
        """,
    "einsum": """
        def attend(q, k, v):
            dots = einsum("bhid,bhjd->bhij", q, k)
            attn = torch.softmax(dots, dim=-1)
            return einsum("bhij,bhjd->bhid", attn, v)
        """,
    "multiplied and summed": """
        def attend(q, k, v):
            scores = (q[:, :, None] * k[:, None]).sum(-1)
            return torch.bmm(torch.softmax(scores, -1), v)
        """,
    "multiplied and summed by name": """
        def attend(Q, K, V):
            Y = Q.unsqueeze(2) * K.unsqueeze(1)
            Y = Y / math.sqrt(Y.size(-1))
            attn = torch.softmax(Y, dim=2)
            weighted = attn * V.unsqueeze(1)
            weighted = weighted.sum(dim=2)
            return weighted.flatten(2)
        """,
    "summed by a function": """
        def attend(q, k, v):
            weights = torch.softmax(torch.sum(q[:, :, None] * k[:, None], dim=-1), -1)
            parts = torch.mul(weights[..., None], v[:, None])
            return torch.sum(parts, 2)
        """,
    "multiplied in place": """
        def attend(q, k, v):
            weights = torch.softmax(q @ k.mT, -1)[..., None].expand(-1, -1, -1, v.shape[-1]).clone()
            weights *= v[:, None]
            return weights.sum(-2)
        """,
    "exponential and its sum": """
        def attend(q, k, v):
            e = torch.exp(q @ k.mT)
            return (e / e.sum(-1, keepdim=True)) @ v
        """,
    "fused": """
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        """,
    "a query at a time": """
        def attend(q, k, v):
            rows = []
            for i in range(q.shape[1]):
                weights = torch.softmax(q[:, i] @ k.mT, -1)
                rows.append(weights @ v)
            return torch.stack(rows, 1)
        """,
    "scores from a helper": """
        def scores_of(q, k):
            return q @ k.mT

        def attend(q, k, v):
            return torch.softmax(scores_of(q, k), -1) @ v
        """,
    "softmax in a helper": """
        def masked_softmax(x, mask):
            return x.masked_fill(~mask, -1e9).softmax(-1)

        def attend(q, k, v, mask):
            return masked_softmax(q @ k.mT, mask) @ v
        """,
    "linear attention with softmaxes": """
        def attend(q, k, v):
            q, k = q.softmax(-1), k.softmax(-2)
            context = torch.einsum("bnd,bne->bde", k, v)
            return torch.einsum("bnd,bde->bne", q, context)
        """,
}
LEARNED = """
    class Pool(nn.Module):
        def forward(self, x):
            weights = torch.softmax(self.queries @ x.mT, -1)
            return weights @ x
    """
NO_ATTENTION = {
    "classifier": """
        def classify(x, w1, w2):
            return torch.softmax(torch.relu(x @ w1) @ w2, -1)
        """,
    "router": """
        class Router(nn.Module):
            def forward(self, x):
                gates = F.softmax(self.gate(x), -1)
                return torch.einsum("bne,bned->bnd", gates, self.experts(x))
        """,
    "loss": """
        def loss(x, y):
            return -(y * F.log_softmax(x, -1)).sum(-1).mean()
        """,
    "gates of channels": """
        class Gate(nn.Module):
            def forward(self, x):
                gates = torch.softmax(self.up(self.down(x.mean(1))), -1)
                gated = x * gates[:, None]
                return gated.sum(1)
        """,
    "weights that are masked, and returned": """
        def weights_of(q, k, mask):
            weights = torch.softmax(q @ k.mT, -1)
            weights = weights * mask
            return weights / weights.sum(-1).unsqueeze(-1)
        """,
    "weights that are made sum to 1, and returned": """
        def weights_of(q, k, near):
            weights = torch.softmax(q @ k.mT, -1)
            weights = weights * near
            return weights / weights.sum(-1, keepdim=True)
        """,
    "part of a loss": """
        def loss(x, y):
            parts = y * F.log_softmax(x, -1)
            return -parts.sum(-1).mean()
        """,
    "product only": """
        def similarity(a, b):
            return (a @ b.mT).relu()
        """,
    "products with weights of the module": """
        class Mixer(nn.Module):
            def forward(self, x):
                return torch.softmax(x @ self.w1, -1) @ self.w2
        """,
    "text": """
        def explain():
            return "softmax(q @ k) @ v"
        """,
}


def found(*texts: str) -> dict[str, str]:
    """Return the kind of each function and class that is found, by its name; the files are a.py, b.py, …"""
    files = [(Path(f"{name}.py"), textwrap.dedent(text)) for name, text in zip("abc", texts, strict=False)]
    return {one.name: one.kind for one in find_attention(files)}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_found(name):
    assert found(ATTENTION[name]).get("attend") == "function"


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_other_softmaxes_are_no_attention(name):
    assert found(NO_ATTENTION[name]) == {}


MODULE = """
    class Attention(nn.Module):
        def __init__(self, dim):
            self.to_qkv = nn.Linear(dim, 3 * dim)
            self.attend = nn.Softmax(dim=-1)

        def forward(self, x):
            q, k, v = self.to_qkv(x).chunk(3, -1)
            return self.attend(q @ k.mT) @ v
    """


@pytest.mark.parametrize(
    ("imports", "is_torch"),
    [
        ("import torch\nimport numpy as np", True),
        ("from torch import nn\nimport jax", True),
        ("import math", True),
        ("import numpy as np\nfrom einops import einsum", True),
        ("import numpy as np\nfrom .common import *", True),
        ("import numpy as np\nfrom .common import phi", False),
        ("from flax import linen as nn\nimport jax.numpy as jnp", False),
        ("import tensorflow as tf", False),
    ],
)
def test_arrays_of_another_library(imports: str, is_torch: bool):
    text = "{}\n\n\ndef attend(q, k, v):\n    e = xp.exp(q @ k)\n    return (e / e.sum(-1)) @ v\n"
    assert [found.name for found in find_attention([(Path("a.py"), text.format(imports))])] == ["attend"] * is_torch


def test_softmax_that_is_an_attribute():
    assert found(MODULE) == {"Attention": "module"}


def test_learned_queries_are_no_weights():
    assert found(LEARNED) == {"Pool": "module"}


def test_weights_from_a_function_with_a_gradient_of_its_own():
    text = """
    class Weights(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k):
            return (q @ k.mT).softmax(-1)

    class Gates(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k):
            return (q + k).softmax(-1)

    class Attention(nn.Module):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return Weights.apply(q, k) @ v

    class Gated(nn.Module):
        def forward(self, x):
            a, b, c = self.abc(x).chunk(3, -1)
            return Gates.apply(a, b) @ c
    """
    assert found(text) == {"Attention": "module"}


def test_weights_in_messages_along_edges():
    text = """
    class Conv(MessagePassing):
        def forward(self, x, edges):
            return self.propagate(edges, x=x)

        def message(self, x_i, x_j, index):
            weights = softmax((self.query(x_i) * self.key(x_j)).sum(-1), index)
            return self.value(x_j) * weights[:, None]

    class Gated(MessagePassing):
        def forward(self, x, edges):
            return self.propagate(edges, x=x)

        def message(self, x_i, x_j, index):
            return self.value(x_j) * softmax(self.gate(x_i), index)[:, None]
    """
    assert found(text) == {"Conv": "module"}


def test_weights_of_sums_need_the_name_of_an_attention():
    text = """
    class {}(nn.Module):
        def forward(self, query, keys):
            weights = torch.softmax(self.v(torch.tanh(self.w(query)[:, None] + self.u(keys))), dim=1)
            context = weights * keys
            return context.sum(dim=1)
    """
    assert found(text.format("Attention")) == {"Attention": "module"}
    assert found(text.format("Mixture")) == {}


def test_what_a_call_keeps_for_later_calls_is_no_weight():
    text = """
    class Attention(nn.Module):
        def __init__(self, dim):
            self.of_query, self.of_memory = nn.Linear(dim, dim), nn.Linear(dim, dim)
            self.seen = None
            self.weight = nn.Parameter(torch.zeros(dim, dim))

        def forward(self, state, memory):
            if self.seen is None:
                self.seen = self.of_memory(memory)
            return (self.of_query(state) @ self.seen.mT).softmax(-1) @ self.seen

    class Gate(nn.Module):
        def __init__(self, dim):
            self.of_query = nn.Linear(dim, dim)
            self.weight = nn.Parameter(torch.zeros(dim, dim))

        def forward(self, state, memory):
            return (self.of_query(state) @ self.weight).softmax(-1) @ self.weight
    """
    assert found(text) == {"Attention": "module"}


def test_methods_share_the_work():
    text = """
    class Attention(nn.Module):
        def scores(self, q, k):
            return q @ k.mT

        def combine(self, weights, v):
            return weights @ v

        def forward(self, q, k, v):
            return self.combine(F.softmax(self.scores(q, k), -1), v)
    """
    assert found(text) == {"Attention": "module"}


def test_containers_and_subclasses_across_files():
    user = """
    from a import Attention
    from a import Attention as Attend

    class Wider(Attention):
        pass

    class Block(nn.Module):
        def __init__(self, dim):
            self.attn = Attend(dim)

    class Model(nn.Module):
        def __init__(self, dim):
            self.blocks = nn.ModuleList([Block(dim) for _ in range(3)])

    class Head(nn.Module):
        def forward(self, x):
            return F.softmax(self.linear(x), -1)
    """
    assert found(MODULE, user) == {"Attention": "module", "Wider": "module", "Block": "container", "Model": "container"}


def test_package_named_like_its_module():
    encoder = """
    class Encoder(nn.Module):
        def __init__(self, dim):
            self.layer = Attention(dim)
    """
    user = """
    from package.package import Encoder

    class Model(nn.Module):
        def __init__(self, dim):
            self.encoder = Encoder(dim)
    """
    texts = {
        "package/__init__.py": "from package.package import Encoder",
        "package/package.py": textwrap.dedent(MODULE) + textwrap.dedent(encoder),
        "package/user.py": textwrap.dedent(user),
    }
    kinds = {one.name: one.kind for one in find_attention([(Path(name), text) for name, text in texts.items()])}
    assert kinds == {"Attention": "module", "Encoder": "container", "Model": "container"}


HEADS = """
    class Head(nn.Module):
        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return F.softmax(q @ k.mT, -1) @ v

    class Heads(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            {construction}
            self.out = nn.Linear(dim, dim)

        def forward(self, x):
            {call}
            return self.out(x)
    """


@pytest.mark.parametrize(
    "construction",
    [
        "self.heads = nn.ModuleList([Head(dim) for _ in range(heads)])",
        "self.heads = nn.ModuleList(Head(dim) for _ in range(heads))",
        "self.heads = [Head(dim)] * heads",
        "self.heads = nn.ModuleList(); self.heads.append(Head(dim))",
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        "x = torch.cat([head(x) for head in self.heads], -1)",
        "x = torch.stack([head(x)[0] for i, head in enumerate(self.heads)]).mean(0)",
        "x = sum(head(part) for head, part in zip(self.heads, x.chunk(4, -1)))",
        "every = [head(x) for head in self.heads]; x = torch.cat(every, dim=-1)",
        "of = []\n            for head in self.heads: of.append(head(x))\n            x = torch.cat(of, -1)",
        "of = []\n            for head in self.heads: y = head(x); of.append(y)\n            x = torch.cat(of, -1)",
    ],
)
def test_heads_whose_results_are_joined_are_an_attention(construction: str, call: str) -> None:
    text = HEADS.format(construction=construction, call=call)
    assert found(text) == {"Head": "module", "Heads": "module"}


@pytest.mark.parametrize(
    "call",
    [
        "for head in self.heads: x = head(x)",
        "of = []\n            for head in self.heads: x = head(x); of.append(x)\n            x = torch.cat(of, -1)",
        "x = torch.cat([norm(x) for norm in self.norms], -1)",
    ],
)
def test_layers_one_after_the_other_are_contained(call: str) -> None:
    text = HEADS.format(construction="self.heads = nn.ModuleList([Head(dim) for _ in range(heads)])", call=call)
    assert found(text) == {"Head": "module", "Heads": "container"}


def test_torch_modules_are_contained():
    text = """
    class Layer(nn.Module):
        def __init__(self, d):
            self.multihead_attn = nn.MultiheadAttention(d, 8)

        def forward(self, x):
            return self.multihead_attn(x, x, x)[0]
    """
    assert found(text) == {"Layer": "container"}


def test_operator_that_is_handed_on_is_contained():
    text = """
    class Attend(nn.Module):
        def forward(self, queries, keys, values):
            return F.softmax(queries @ keys.mT, -1) @ values

    class Model(nn.Module):
        def __init__(self, dim):
            self.layers = nn.ModuleList([Layer(Attend(), dim)])

        def forward(self, x):
            return self.layers[0](x)
    """
    assert found(text) == {"Attend": "module", "Model": "container"}


def test_functions_that_a_module_calls_are_its_helpers():
    text = f"""
    {textwrap.indent(textwrap.dedent(ATTENTION["einsum"]), "    ").strip()}

    class Attention(nn.Module):
        def forward(self, x):
            q, k, v = self.qkv(x).unbind(2)
            return attend(q, k, v)

    class Chosen(nn.Module):
        def forward(self, x):
            interface = CHOICES.get(self.kind, attend)
            return interface(x, x, x)
    """
    assert found(text) == {"attend": "helper", "Attention": "module", "Chosen": "module"}


def test_projecting_module_around_an_operator():
    text = """
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return F.softmax(q @ k.mT, -1) @ v

    class Attention(nn.Module):
        def __init__(self, dim):
            self.qkv, self.attend = nn.Linear(dim, 3 * dim), Attend()

        def forward(self, x):
            return self.attend(*self.qkv(x).chunk(3, -1))

    class Layer(nn.Module):
        def __init__(self, dim):
            self.attention = Attention(dim)
    """
    assert found(text) == {"Attend": "helper", "Attention": "module", "Layer": "container"}


def test_attention_of_another_library_is_contained():
    text = """
    from elsewhere.layers import Attention, AttentionMask, FlashAttn as Flash

    class Block(nn.Module):
        def __init__(self, dim):
            self.attn = Attention(dim)

    class Other(nn.Module):
        def __init__(self, dim):
            self.mask = AttentionMask(dim)
            self.attn = SelfAttention(dim)
    """
    assert found(text) == {"Block": "container"}


def test_recursion_and_imports_in_a_circle_end():
    one = "from b import other\n\ndef attend(q, k, v):\n    return other(q, k, v)\n"
    two = "from a import attend\n\ndef other(q, k, v):\n    return attend(q, k, other(q, k, v))\n"
    assert found(one, two) == {}


def test_why_names_the_call_and_its_line():
    (one,) = find_attention([(Path("a.py"), textwrap.dedent(MODULE))])
    assert (one.line, one.why) == (2, "attend() at line 9")


@pytest.mark.parametrize("line", ["from ..fused import dispatch", "from package.fused import dispatch"])
def test_a_file_alone_may_call_the_attention_of_a_file_that_it_imports(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "package" / "models"
    folder.mkdir(parents=True)
    for parent in (folder, folder.parent):
        (parent / "__init__.py").touch()
    (folder.parent / "fused.py").write_text(
        "def dispatch(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v)\n"
    )
    (folder / "flux.py").write_text(
        f"{line}\n\n\nclass Attn(nn.Module):\n    def forward(self, q, k, v):\n        return dispatch(q, k, v)\n"
    )
    (found,) = find_targets([str(folder / "flux.py")], "").targets
    assert (found.name, found.kind, found.file) == ("Attn", "module", str(folder / "flux.py"))


def test_base_class_without_a_call_is_left_to_those_that_complete_it():
    text = """
    class Base(nn.Module):
        def __init__(self, dim, heads):
            self.attn = nn.MultiheadAttention(dim, heads)

    class Block(Base):
        def forward(self, x):
            return x + self.attn(x, x, x)[0]
    """
    assert found(text) == {"Block": "container"}
