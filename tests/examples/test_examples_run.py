"""Each example runs as a script, documents its trace command, and computes the right result."""

import ast
import importlib.util
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py"))

# Sizes that differ from one another, so that no two axes can be confused.
B, H, HKV, L, LQ, LK, LP, DK, DV = 2, 6, 3, 5, 10, 7, 4, 8, 9
D = H * DK


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def exact():
    """Use float64 by default and a fixed seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.set_default_dtype(before)


def agree(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def heads(flat: Tensor, count: int = H) -> Tensor:
    """Return `B L (count*Dk)` as `B count L Dk`, by slices instead of a view."""
    return torch.stack(flat.chunk(count, dim=-1), dim=1)


def merge(context: Tensor) -> Tensor:
    """Invert `heads`."""
    return torch.cat(context.unbind(dim=1), dim=-1)


def by_hand(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute attention by loops; return the context and the weights."""
    context, weights = torch.zeros(*query.shape[:3], value.shape[-1]), torch.zeros(*query.shape[:3], key.shape[2])
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                logits = [float(query[b, h, i] @ key[b, h, j]) / math.sqrt(DK) for j in range(key.shape[2])]
                powers = [
                    math.exp(logit) if visible is None or visible[b, i, j] else 0.0 for j, logit in enumerate(logits)
                ]
                weights[b, h, i] = torch.tensor(powers) / math.fsum(powers)
                context[b, h, i] = sum(weights[b, h, i, j] * value[b, h, j] for j in range(key.shape[2]))
    return context, weights


def projected(module: nn.Module, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    memory = x if memory is None else memory
    return heads(module.Wq(x)), heads(module.Wk(memory)), heads(module.Wv(memory))


def test_every_example_has_expectations():
    assert sorted(EXPECTED) == FILES


@pytest.mark.parametrize("file", sampled(FILES, ["examples/self_attention.py", "examples/gqa.py"]))
def test_example_runs_as_a_script(file):
    done = subprocess.run([sys.executable, file], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("(2, ")


@pytest.mark.parametrize("file", FILES)
def test_docstring_has_the_trace_command(file):
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    command = docstring.split("Trace it:")[1].replace("\\\n", " ")
    assert shlex.split(command) == ["attnshape", "trace", *EXPECTED[file]["argv"]]


@pytest.mark.parametrize("file", FILES)
def test_expected_names_are_in_the_source(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert set(EXPECTED[file]["names"]) <= stored
    assert set(EXPECTED[file]["signatures"]) - {"output"} <= set(EXPECTED[file]["names"])


def test_self_attention():
    module = load("self_attention").CausalSelfAttention(D, H)
    x = torch.randn(B, L, D)
    context = F.scaled_dot_product_attention(*projected(module, x), is_causal=True)
    agree(module(x), module.Wo(merge(context)))


def test_cross_attention():
    module = load("cross_attention").Cross(D, H)
    q, kv = torch.randn(B, LQ, D), torch.randn(B, LK, D)
    context, weights = by_hand(*projected(module, q, kv))
    actual_output, actual_weights = module(q, kv)
    agree(actual_weights, weights)
    agree(actual_output, module.Wo(merge(context)))


def test_own_function():
    query, key, value = torch.randn(B, H, LQ, DK), torch.randn(B, H, LK, DK), torch.randn(B, H, LK, DV)
    actual_context, actual_weights = load("own_function").attention(query, key, value)
    agree(actual_context, F.scaled_dot_product_attention(query, key, value))
    agree(actual_weights, by_hand(query, key, value)[1])


def test_fused_qkv():
    module = load("fused_qkv").FusedSelfAttention(D, H)
    x = torch.randn(B, L, D)
    Wq, Wk, Wv = module.Wqkv.weight.chunk(3)
    bq, bk, bv = module.Wqkv.bias.chunk(3)
    query, key, value = heads(F.linear(x, Wq, bq)), heads(F.linear(x, Wk, bk)), heads(F.linear(x, Wv, bv))
    agree(module(x), module.Wo(merge(F.scaled_dot_product_attention(query, key, value))))


def test_gqa():
    module = load("gqa").GroupedQueryAttention(D, H, HKV)
    x = torch.randn(B, L, D)
    query, key, value = heads(module.Wq(x)), heads(module.Wk(x), HKV), heads(module.Wv(x), HKV)
    context = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    agree(module(x), module.Wo(merge(context)))


def rotated(x: Tensor) -> Tensor:
    """Apply the rotary embedding as multiplication by complex numbers of length one."""
    pairs = torch.complex(x[..., : DK // 2].contiguous(), x[..., DK // 2 :].contiguous())
    angles = torch.tensor([[p / 10_000.0 ** (2 * i / DK) for i in range(DK // 2)] for p in range(x.shape[-2])])
    product = pairs * torch.exp(1j * angles)
    return torch.cat((product.real, product.imag), dim=-1)


def test_rotary():
    module = load("rotary").RotaryAttention(D, H)
    x = torch.randn(B, L, D)
    query, key, value = (heads(F.linear(x, weight)) for weight in module.Wqkv.weight.chunk(3))
    context = F.scaled_dot_product_attention(rotated(query), rotated(key), value)
    agree(module(x), module.Wo(merge(context)))


def test_kv_cache_continues_a_longer_sequence():
    module = load("kv_cache").CachedAttention(D, H)
    x = torch.randn(B, LP + L, D)
    query, key, value = projected(module, x)
    whole = module.Wo(merge(F.scaled_dot_product_attention(query, key, value, is_causal=True)))
    actual_output, actual_key, actual_value = module(x[:, LP:], key[:, :, :LP], value[:, :, :LP])
    agree(actual_output, whole[:, LP:])
    agree(actual_key, key)
    agree(actual_value, value)


def test_einsum_style():
    module = load("einsum_style").EinsumAttention(D, H)
    x = torch.randn(B, L, D)
    query, key, value = (heads(x @ weight.reshape(D, H * DK)) for weight in (module.Wq, module.Wk, module.Wv))
    context = F.scaled_dot_product_attention(query, key, value)
    agree(module(x), merge(context) @ module.Wo.reshape(H * DK, D))


def test_sdpa():
    module = load("sdpa").FlashSelfAttention(D, H)
    x = torch.randn(B, L, D)
    visible = torch.ones(L, L, dtype=torch.bool).tril().expand(B, L, L)
    context, _ = by_hand(*projected(module, x), visible)
    agree(module(x), module.Wo(merge(context)))


@pytest.mark.parametrize("training", [True, False])
def test_torch_multihead(training):
    module = load("torch_multihead").Block(D, H).train(training)
    x = torch.randn(B, L, D)
    inner = module.attention
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + module.norm.eps).sqrt()
    query, key, value = (heads(F.linear(normed, weight)) for weight in inner.in_proj_weight.chunk(3))
    context, weights = by_hand(query, key, value)
    actual_output, actual_weights = module(x)
    agree(actual_output, x + inner.out_proj(merge(context)))
    agree(actual_weights, weights.mean(dim=1))


def test_case():
    function, args, kwargs = load("case").padded(B, H, LQ, LK, DK, DV)
    visible = torch.tensor([[[j < LK - b for j in range(LK)]] * LQ for b in range(B)])
    context, weights = by_hand(*args, visible)
    actual_context, actual_weights = function(*args, **kwargs)
    agree(actual_context, context)
    agree(actual_weights, weights)


def test_annotated():
    query, key, value = torch.randn(B, H, LQ, DK), torch.randn(B, H, LK, DK), torch.randn(B, H, LK, DV)
    mask = torch.rand(LQ, LK) < 0.5
    mask[:, 0] = True
    actual = load("annotated").masked_attention(query, key, value, mask)
    agree(actual, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))


def test_custom_symbols():
    module = load("own_dims").Attention(D, H)
    x = torch.randn(B, L, D)
    query, key, value = (heads(F.linear(x, weight)) for weight in module.qkv_proj.weight.chunk(3))
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    agree(module(x), module.out_proj(merge(context)))


def test_mistakes():
    """The scores are scaled by the model's width; everything else is right."""
    module = load("mistakes").SelfAttention(D, H)
    x = torch.randn(B, L, D)
    weights, biases = module.Wqkv.weight.chunk(3), module.Wqkv.bias.chunk(3)
    query, key, value = (heads(F.linear(x, weights[part], biases[part])) for part in range(3))
    context = F.scaled_dot_product_attention(query, key, value, scale=1 / math.sqrt(D))
    agree(module(x), module.Wo(merge(context)))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("self_attention", "CausalSelfAttention"),
        ("fused_qkv", "FusedSelfAttention"),
        ("einsum_style", "EinsumAttention"),
        ("sdpa", "FlashSelfAttention"),
        ("torch_multihead", "Block"),
        ("own_dims", "Attention"),
        ("mistakes", "SelfAttention"),
    ],
)
def test_example_runs_at_prime_sizes(name, cls):
    """All examples but gqa and rotary, which restrict their sizes."""
    batch, n_heads, length, d_head = 5, 7, 11, 13
    output = getattr(load(name), cls)(n_heads * d_head, n_heads)(torch.randn(batch, length, n_heads * d_head))
    first = output[0] if isinstance(output, tuple) else output
    assert first.shape == (batch, length, n_heads * d_head)
    assert first.isfinite().all()
