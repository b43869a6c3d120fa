"""Which functions and classes are found as attention, by their source alone."""

import textwrap
from pathlib import Path

import pytest

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


def test_softmax_that_is_an_attribute():
    assert found(MODULE) == {"Attention": "module"}


def test_learned_queries_are_no_weights():
    assert found(LEARNED) == {"Pool": "module"}


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
    assert found(text) == {"Attend": "module", "Attention": "module", "Layer": "container"}


def test_recursion_and_imports_in_a_circle_end():
    one = "from b import other\n\ndef attend(q, k, v):\n    return other(q, k, v)\n"
    two = "from a import attend\n\ndef other(q, k, v):\n    return attend(q, k, other(q, k, v))\n"
    assert found(one, two) == {}


def test_why_names_the_call_and_its_line():
    (one,) = find_attention([(Path("a.py"), textwrap.dedent(MODULE))])
    assert (one.line, one.why) == (2, "attend() at line 9")
