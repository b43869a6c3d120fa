"""What a function of the traced code returns has the name of its caller's variable."""

import pytest

from tests.tracing.traced_source import names, trace

HELPERS = """
def split(x, heads):
    x = x.unflatten(-1, (heads, -1))
    out = x.transpose(1, 2)
    return out

def attend(q, k, v):
    scores = q @ k.mT
    attn = scores.softmax(-1)
    y = attn @ v
    return y, attn

def outer(x):
    z = split(x, 4)
    return z

def same(x):
    return x

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 64)

    def forward(self, x):
        out = self.project(x)
        return out
"""


def traced_names(tmp_path, body):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return names(trace(tmp_path, f"{HELPERS}\ndef f(x):\n{lines}", "x: B L D", D=64))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("query = split(x, 4)\nreturn query * 2", ["x", "query", None]),
        ("query = split(x, heads=4)\nkey = split(x, 4)\nreturn query + key", ["x", "query", "x", "key", None]),
        ("context, weights = attend(x, x, x)\nreturn context * 2", [None, "scores", "weights", "context", None]),
        ("query: Tensor = outer(x)\nreturn query * 2", ["x", "query", None]),
        ("made = x * 2\nother = same(made)\nreturn other + 1", ["made", None]),
        ("a = b = split(x, 4)\nreturn a * 2", ["x", "a", None]),
        ("return split(x, 4) * 2", ["x", "out", None]),
        ("y = split(x, 4) * 2\nreturn y", ["x", "out", "y"]),
        ("query = (lambda t: t * 2)(x)\nreturn query + 1", ["query", None]),
    ],
)
def test_names(body, expected, tmp_path):
    assert traced_names(tmp_path, body) == expected


def test_module_of_the_traced_code(tmp_path):
    found = traced_names(tmp_path, "block = Block()\nhidden = block(x)\nreturn hidden * 2")
    assert found[-2:] == ["hidden", None]


@pytest.mark.parametrize("helper", ["split(x, 4)", "outer(x)"])
def test_function_called_again_at_the_same_place(helper, tmp_path):
    body = f"parts = []\nfor _ in range(3):\n    part = {helper}\n    parts.append(part)\nreturn parts[0] + parts[2]"
    assert traced_names(tmp_path, body) == ["x", "part", "x", "part", "x", "part", None]


def test_annotation_inside_the_function_is_still_checked(tmp_path):
    source = """
    from jaxtyping import Float

    def helper(x):
        inner: Float[Tensor, "DIMS"] = x * 2
        return inner

    def f(x):
        outer = helper(x)
        return outer + 1
    """
    right = trace(tmp_path, source.replace("DIMS", "B L"), "x: B L")
    wrong = trace(tmp_path, source.replace("DIMS", "L B"), "x: B L")
    assert [step.outputs[0].tensor.checked for step in right.steps] == ["declared", "inferred"]
    assert any("wrong annotation" in note and "outer is declared 'L B'" in note for note in wrong.notes)


@pytest.mark.parametrize("name", ["out", "query"])
def test_both_names_can_be_expected(name, tmp_path):
    source = f"{HELPERS}\ndef f(x):\n    query = split(x, 4)\n    return query * 2"
    traced = trace(tmp_path, source, "x: B L D", expect=(f"{name}: B 4 L D//4",), D=64)
    assert [expectation.holds for expectation in traced.expectations] == [True]


def test_no_tensor_is_kept(tmp_path):
    source = """
    import weakref

    def helper(x):
        inner = x * 2
        watched.append(weakref.ref(inner))
        return inner + 1

    watched = []

    def f(x):
        outer = helper(x)
        assert watched[-1]() is None
        return outer * 2
    """
    assert trace(tmp_path, source, "x: B L").complete


def test_what_a_variable_no_longer_holds_is_freed(tmp_path):
    body = "made = split(x, 4)\nold = weakref.ref(made)\nmade = split(x, 2)\nfreed = old() is None\nassert freed"
    assert traced_names(tmp_path, f"import weakref\n{body}\nreturn made * 2") == ["x", "made", "x", "made", None]
