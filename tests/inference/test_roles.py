"""Roles are inferred from the data flow: independent of variable names, and absent if unclear."""

import re
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnshape.inference.roles import with_roles
from tests.tracing.traced_source import step_named, trace

PROJECTED = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wq = nn.Linear(24, 24)
        self.Wk = nn.Linear(24, 24)
        self.Wv = nn.Linear(24, 24)
        self.Wo = nn.Linear(24, 24)

    def forward(self, INPUTS):
"""


def module(body, inputs="x"):
    lines = "\n".join(f"        {line}" for line in body.strip("\n").split("\n"))
    return PROJECTED.replace("INPUTS", inputs) + lines + "\n"


PLAIN = """
n, l, _ = x.shape
query = self.Wq(x).view(n, l, 3, 8).transpose(1, 2)
key = self.Wk(x).view(n, l, 3, 8).transpose(1, 2)
value = self.Wv(x).view(n, l, 3, 8).transpose(1, 2)
scores = query @ key.transpose(-2, -1)
scaled = scores / math.sqrt(8)
causal = torch.ones(l, l).triu(1).bool()
masked = scaled.masked_fill(causal, float("-inf"))
weights = masked.softmax(-1)
dropped = F.dropout(weights, 0.1, self.training)
context = dropped @ value
heads = context.transpose(1, 2)
joined = heads.contiguous()
merged = joined.view(n, l, 24)
output = self.Wo(merged)
return output
"""
PLAIN_ROLES = [
    *["projection", "split", "transpose"] * 3,
    "transpose",
    "scores",
    "scale",
    *[None] * 3,
    "mask",
    "softmax",
    "dropout",
    "context",
    "transpose",
    "merge",
    "merge",
    "output",
]


def roles(traced):
    return [step.role for step in traced.steps]


def test_roles_of_plain_attention(tmp_path):
    traced = trace(tmp_path, module(PLAIN), "x: B L 24", target="M")
    assert roles(traced) == PLAIN_ROLES
    for name in ("scores", "context", "output"):
        assert step_named(traced, name).role == name


NAMES = (
    "query",
    "key",
    "value",
    "scores",
    "scaled",
    "masked",
    "weights",
    "dropped",
    "context",
    "heads",
    "merged",
    "output",
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(NAMES), strange=st.booleans())
def test_roles_do_not_depend_on_variable_names(order, strange, tmp_path):
    new = {
        name: f"v{place}" if strange else other for place, (name, other) in enumerate(zip(NAMES, order, strict=True))
    }
    body = re.sub(r"\b(" + "|".join(NAMES) + r")\b(?!\()", lambda found: new[found[0]], PLAIN)
    assert roles(trace(tmp_path, module(body), "x: B L 24", target="M")) == PLAIN_ROLES


def test_with_roles_is_idempotent(tmp_path):
    traced = trace(tmp_path, module(PLAIN), "x: B L 24", target="M")
    assert [step.role for step in with_roles(traced.steps)] == PLAIN_ROLES


def by_expression(traced):
    """Return each role with the operations of its steps."""
    found = {}
    for step in traced.steps:
        if step.role is not None:
            found.setdefault(step.role, []).append(step.operation.rpartition(".")[2])
    return found


def test_roles_of_einsum_attention(tmp_path):
    body = """
n, l, _ = x.shape
a = self.Wq(x).view(n, l, 3, 8)
b = self.Wk(x).view(n, l, 3, 8)
c = self.Wv(x).view(n, l, 3, 8)
s = torch.einsum("blhd,bmhd->bhlm", a, b) * 8 ** -0.5
w = F.softmax(s, dim=-1)
o = torch.einsum("bhlm,bmhd->blhd", w, c).reshape(n, l, 24)
return self.Wo(o)
"""
    assert by_expression(trace(tmp_path, module(body), "x: B L 24", target="M")) == {
        "projection": ["linear"] * 3,
        "split": ["view"] * 3,
        "scores": ["einsum"],
        "scale": ["mul"],
        "softmax": ["softmax"],
        "context": ["einsum"],
        "merge": ["reshape"],
        "output": ["linear"],
    }


def test_roles_with_heads_folded_into_the_batch(tmp_path):
    body = """
n, l, _ = x.shape
a = self.Wq(x).view(n, l, 3, 8).permute(0, 2, 1, 3).reshape(n * 3, l, 8)
b = self.Wk(x).view(n, l, 3, 8).permute(0, 2, 1, 3).reshape(n * 3, l, 8)
c = self.Wv(x).view(n, l, 3, 8).permute(0, 2, 1, 3).reshape(n * 3, l, 8)
s = torch.bmm(a * 8 ** -0.5, b.transpose(1, 2))
w = torch.softmax(s, dim=-1)
o = torch.bmm(w, c)
o = o.view(n, 3, l, 8).transpose(1, 2).reshape(n, l, 24)
return self.Wo(o)
"""
    found = by_expression(trace(tmp_path, module(body), "x: B L 24", target="M"))
    assert found["projection"] == ["linear"] * 3
    assert found["split"] == ["view"] * 3
    assert found["scale"] == ["mul"]
    assert (found["scores"], found["softmax"], found["context"]) == (["bmm"], ["softmax"], ["bmm"])
    assert (found["merge"], found["output"]) == (["reshape"], ["linear"])


def test_roles_of_cross_attention(tmp_path):
    body = """
q, k, v = self.Wq(x), self.Wk(memory), self.Wv(memory)
w = torch.softmax(q @ k.mT / 24 ** 0.5, dim=-1)
return self.Wo(w @ v)
"""
    traced = trace(tmp_path, module(body, "x, memory"), "x: B Lq 24", "memory: B Lk 24", target="M")
    assert roles(traced) == ["projection"] * 3 + ["transpose", "scores", "scale", "softmax", "context", "output"]


def test_roles_of_additive_attention(tmp_path):
    source = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.Wq = nn.Linear(24, 16)
            self.Wk = nn.Linear(24, 16)
            self.v = nn.Linear(16, 1)

        def forward(self, q, k):
            both = torch.tanh(self.Wq(q)[:, :, None] + self.Wk(k)[:, None])
            e = self.v(both).squeeze(-1)
            return e.softmax(-1) @ k
    """
    found = by_expression(trace(tmp_path, source, "q: B Lq 24", "k: B Lk 24", target="M"))
    assert found == {"projection": ["linear"] * 2, "scores": ["linear"], "softmax": ["softmax"], "context": ["matmul"]}


def test_roles_of_fused_attention(tmp_path):
    body = """
n, l, _ = x.shape
a = self.Wq(x).view(n, l, 3, 8).transpose(1, 2)
b = self.Wk(x).view(n, l, 3, 8).transpose(1, 2)
c = self.Wv(x).view(n, l, 3, 8).transpose(1, 2)
o = F.scaled_dot_product_attention(a, b, c).transpose(1, 2).flatten(2)
return self.Wo(o)
"""
    expected = [*["projection", "split", "transpose"] * 3, "context", "transpose", "merge", "output"]
    assert roles(trace(tmp_path, module(body), "x: B L 24", target="M")) == expected


@pytest.mark.parametrize(
    "body",
    [
        "return self.Wq(x).softmax(-1)",
        "return self.Wq(x).softmax(-1) * self.Wk(x)",
        "gate = self.Wq(x).softmax(-1)\nreturn self.Wo(gate * self.Wk(x))",
        "gate = self.Wq(x).softmax(-1)\nreturn self.Wo(gate)",
        "return self.Wo(F.relu(self.Wq(x)))",
        "return self.Wq(x) @ self.Wk(x).mT @ self.Wv(x)",
        "return x.softmax(-1)",
        "return x @ x.mT",
    ],
)
def test_code_without_attention_has_no_roles(body, tmp_path):
    traced = trace(tmp_path, module(body), "x: B L 24", target="M")
    assert set(roles(traced)) == {None}


SCORES = """
q, k, v = self.Wq(x), self.Wk(x), self.Wv(x)
scores = q @ k.mT
"""


@pytest.mark.parametrize(
    "softmax",
    [
        "weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))",
        "weights = torch.exp(scores - scores.float().logsumexp(-1)[..., None].to(scores))",
        "weights = scores.log_softmax(-1).exp()",
        "e = scores.exp()\nweights = e / e.sum(-1, keepdim=True)",
        "e = (scores - scores.amax(-1, keepdim=True)).exp()\nweights = e / (e.sum(-1, keepdim=True) + 1e-9)",
        "e = scores.exp()\nweights = e / e.sum(-1).unsqueeze(-1).clamp_min(1e-9)",
    ],
)
def test_explicit_softmax(softmax, tmp_path):
    traced = trace(tmp_path, module(f"{SCORES}{softmax}\nreturn self.Wo(weights @ v)"), "x: B L D", target="M", D=24)
    assert step_named(traced, "scores").role == "scores"
    assert step_named(traced, "weights").role == "softmax"
    assert [step.role for step in traced.steps[-2:]] == ["context", "output"]


@pytest.mark.parametrize(
    "gate",
    [
        "weights = torch.exp(scores - scores.amax(-1, keepdim=True))",
        "e = scores.exp()\nweights = e / scores.sum(-1, keepdim=True)",
        "weights = torch.exp(scores - torch.logsumexp(scores * 2, -1, keepdim=True))",
        "e = scores.exp()\nweights = e / e.norm(dim=-1, keepdim=True)",
    ],
)
def test_exponential_alone_is_not_a_softmax(gate, tmp_path):
    traced = trace(tmp_path, module(f"{SCORES}{gate}\nreturn self.Wo(weights @ v)"), "x: B L D", target="M", D=24)
    assert {step.role for step in traced.steps} == {None}


def test_index_tensors_are_not_followed(tmp_path):
    body = """
    keys = self.Wk(x)
    places = torch.arange(x.shape[1]).view(-1, 1) * 1
    chosen = keys.gather(1, places.view(1, -1, 1).expand_as(keys))
    return self.Wo((self.Wq(x) @ chosen.mT).softmax(-1) @ self.Wv(x))
    """
    traced = trace(tmp_path, module(textwrap.dedent(body)), "x: B L D", target="M", D=24)
    assert [step.role for step in traced.steps if "int" in step.outputs[0].tensor.dtype] == [None] * 5
    assert step_named(traced, "keys").role == "projection"


@pytest.mark.parametrize(
    "projected",
    [
        "key = F.linear(x, torch.cat([self.Wq.weight, self.Wk.weight])[24:])",
        "key = F.linear(x, torch.cat([self.Wq.weight, self.Wk.weight]).chunk(2)[1])",
        "key = x @ self.Wk.weight.t()",
        "key = x @ self.Wk.weight.view(24, 24).mT",
    ],
)
def test_product_with_a_part_of_a_parameter_is_a_projection(projected, tmp_path):
    body = f"{projected}\nreturn self.Wo((self.Wq(x) @ key.mT).softmax(-1) @ self.Wv(x))"
    traced = trace(tmp_path, module(body), "x: B L D", target="M", D=24)
    assert step_named(traced, "key").role == "projection"
    assert [step.role for step in traced.steps][-4:] == ["softmax", "projection", "context", "output"]


def test_learned_query_is_not_a_projection_weight(tmp_path):
    body = """
    learned = self.Wq.weight[:5].unsqueeze(0).expand(x.shape[0], -1, -1)
    scores = learned @ self.Wk(x).mT
    return self.Wo(scores.softmax(-1) @ self.Wv(x))
    """
    traced = trace(tmp_path, module(textwrap.dedent(body)), "x: B L D", target="M", D=24)
    assert step_named(traced, "scores").role == "scores"


def test_weight_of_a_normalisation_is_not_a_scale(tmp_path):
    body = """
    query, key = self.Wq(x), self.Wk(x)
    query = self.Wq.bias * (query * query.pow(2).mean(-1, keepdim=True).rsqrt())
    query = query * 0.5
    return self.Wo((query @ key.mT).softmax(-1) @ self.Wv(x))
    """
    traced = trace(tmp_path, module(textwrap.dedent(body)), "x: B L D", target="M", D=24)
    scaled = [step.expression for step in traced.steps if step.role == "scale"]
    assert scaled == ["query * 0.5"]


def test_products_that_are_added_to_each_other_all_make_the_scores(tmp_path):
    body = """
n, l, _ = x.shape
content = self.Wq(x) @ self.Wk(x).transpose(-2, -1)
place = x.cumsum(-1)
turned = place @ place.transpose(-2, -1)
bias = x @ x.transpose(-2, -1)
scores = content + turned
other = scores * bias
weights = other.softmax(-1)
context = weights @ self.Wv(x)
return context
"""
    traced = trace(tmp_path, module(body), "x: B L 24", target="M")
    assert [step_named(traced, name).role for name in ("content", "turned")] == ["scores"] * 2
    assert step_named(traced, "bias").role is None  # it isn't added


@pytest.mark.parametrize(("combined", "found"), [("one - 0.5 * other", True), ("one - x", False)])
def test_weights_that_are_subtracted_from_each_other(combined, found, tmp_path):
    body = f"""
n, l, _ = x.shape
both = torch.stack([self.Wq(x), self.Wk(x)], 1)
weights = (both @ self.Wk(x).transpose(-2, -1).unsqueeze(1)).softmax(-1)
one, other = weights[:, 0], weights[:, 1]
x = x @ x.transpose(-2, -1)
joined = {combined}
context = joined @ self.Wv(both[:, 0])
return context
"""
    traced = trace(tmp_path, module(body), "x: B L 24", target="M")
    assert (step_named(traced, "context").role == "context") is found


def test_projection_of_each_head_after_the_context_is_no_output(tmp_path):
    source = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Parameter(torch.randn(3, 8, 24))
            self.out = nn.Parameter(torch.randn(3, 24, 20))

        def forward(self, q, k):
            context = (q @ k.mT).softmax(-1) @ k
            wider = torch.einsum("bhld,hde->bhle", context, self.up)
            output = torch.einsum("bhle,heo->blo", wider, self.out)
            return output
    """
    traced = trace(tmp_path, source, "q: B 3 Lq 8", "k: B 3 Lk 8", target="M")
    assert [step_named(traced, name).role for name in ("wider", "output")] == ["projection", "output"]
