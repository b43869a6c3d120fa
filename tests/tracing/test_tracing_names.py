"""Each tensor has its name in the source, or none if the name is uncertain."""

import pytest

from tests.tracing.traced_source import HEAD, at, names, step_named, trace


def named(folder, body, *inputs, **kwargs):
    """Trace a function f(x, y) with this body, and return the names of its steps."""
    inputs = inputs or ("x: B Dk", "y: B Dk")
    parameters = ", ".join(spec.partition(":")[0] for spec in inputs)
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return names(trace(folder, f"def f({parameters}):\n{lines}", *inputs, **kwargs))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = x * 2", ["a"]),
        ("a: Tensor = x * 2", ["a"]),
        ("a = b = x * 2", ["a"]),
        ("a, b = x.chunk(2, dim=-1)", [("a", "b")]),
        ("[a, b] = x.chunk(2, dim=-1)", [("a", "b")]),
        ("a, b = x + 1, x * 2", ["a", "b"]),
        ("a, _ = x.max(dim=-1)", [("a", "_")]),
        ("if (a := x * 2) is not None:\n    pass", ["a"]),
        ("a = x * 2 if y is not None else y", ["a"]),
        ("a = y if x is None else x * 2", ["a"]),
        ("a = x * 2 + y", [None, "a"]),
        ("a = x.exp().tanh()", [None, "a"]),
        ("a = (x * 2)", ["a"]),
        ("a = x.exp()\na += y", ["a", "a"]),
        ("a = x.exp()\na *= 2", ["a", "a"]),
        ("a = x.exp()\na[0] = y[1]", ["a", None, "a"]),
        ("a = x.exp()\na[0] += 1", ["a", "a"]),
        ("a = x.exp()\na[:, 1:] -= y[:, 1:]", ["a", None, "a"]),
        ("a = x.exp()\na.add_(1)", ["a", "a"]),
        ("a = x.exp()\ntorch.mul(x, 2, out=a)", ["a", "a"]),
        ("x.exp()", [None]),
        ("return x.exp()", [None]),
        ("a = (x.exp(), x.tanh())", [None, None]),
        ("a = [x.exp()]", [None]),
        ("a = {'k': x.exp()}", [None]),
        ("a = math.sqrt(x.exp().sum())", [None, None]),
        ("a = not x.exp().any()", [None, None]),
        ("a = x.T", ["a"]),
        ("a = -x", ["a"]),
        ("a = x[0]", ["a"]),
        ("a = x < y", ["a"]),
        ("a = torch.where(x > 0, x, y)", [None, "a"]),
        ("x = x * 2\nx = x + 1", ["x", "x"]),
        ("äöü = x * 2\nb = äöü + 1", ["äöü", "b"]),
        ("a = F.softmax(x, dim=-1)", ["a"]),
        ("a = torch.zeros(3)", ["a"]),
        ("for a in range(2):\n    b = x + a", ["b", "b"]),
        ("with torch.no_grad():\n    a = x * 2", ["a"]),
        ("try:\n    a = x * 2\nfinally:\n    b = x + 1", ["a", "b"]),
    ],
)
def test_names_from_bindings(body, expected, tmp_path):
    assert named(tmp_path, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pair = [t * 2 for t in (x, y)]\nq, k = pair\nscores = q @ k.mT", ["q", "k", None, "scores"]),
        ("q, k = (t * 2 for t in (x, y))\nscores = torch.matmul(q, k.mT)", ["q", "k", None, "scores"]),
        ("rows = [t * 2 for t in (x, y)]\na = torch.cat([rows[0], rows[1]])", [None, None, "a"]),
        ("a, b = [t * 2 for t in (x, y)]\nc = torch.cat((a, b), dim=0)", ["a", "b", "c"]),
        ("a, b = [t * 2 for t in (x, y)]\nc = torch.where(a > b, input=a, other=b)", ["a", "b", None, "c"]),
        ("g = lambda t: t * 2\na = g(x)\nb = a + 1", ["a", "b"]),
        ("d = {'k': x * 2}\na = d['k']\nb = a.exp()", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = a[0]", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = -a", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = a.T", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\na += 1", ["a", "a"]),
        ("d = [x * 2]\nb = y.add(other=d[0])", [None, "b"]),
        ("d = [x * 2]\na = d[0]\nb = y.add(other=a)", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = 1 - a", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = y - a", ["a", "b"]),
        ("d = [x * 2]\na = d[0]\nb = torch.add(*(y, a))", [None, "b"]),
    ],
)
def test_names_from_later_uses(body, expected, tmp_path):
    assert named(tmp_path, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # the name of a number is never given to the other operand
        ("scale = 0.5\na = [x * 2]\nb = scale * a[0]", [None, "b"]),
        ("scale = 0.5\na = [x * 2]\nb = a[0] * scale", [None, "b"]),
        ("scale = 0.5\na = [x * 2]\nb = scale - a[0]", [None, "b"]),
        ("n = 2\na = [x * 2]\nb = n ** a[0]", [None, "b"]),
        # a tuple of one tensor and an unpacked tensor are not the tensor itself
        ("parts = x.split(x.shape[-1], dim=-1)", [None]),
        ("a, b = x[:2]\nc = a + b", [None, ("a", "b"), "c"]),
        ("a, *b = x.chunk(2, dim=-1)", [(None, None)]),
        ("pair = x.chunk(2, dim=-1)", [(None, None)]),
        ("(a, b), c = x.chunk(2, dim=-1), x.exp()", [(None, None), "c"]),
        # the arguments and the result of another function are not those of the operations inside it
        ("rows = [x * 1, y * 1]\ntotal = sum(rows)", [None] * 4),
        ("rows = [x * 1, y * 1]\nlargest = max(rows[0].sum(), rows[1].sum())", [None] * 5),
        ("rows = [x * 1, y * 1]\nfound = list(map(torch.exp, rows))", [None] * 4),
        ("from functools import reduce\nrows = [x * 1, y * 1]\ntotal = reduce(torch.add, rows)", [None] * 3),
        ("import operator\nf = operator.add\na = [x * 1]\ntotal = f(a[0], y)", [None] * 2),
    ],
)
def test_uncertain_names_are_omitted(body, expected, tmp_path):
    assert named(tmp_path, body, B=2) == expected


def test_library_function_names_only_its_result(tmp_path):
    pytest.importorskip("einops")
    body = "from einops import rearrange\na = rearrange(x, 'b (h d) -> h d b', h=2)\nb = a + 1"
    assert named(tmp_path, body, "x: B Dk") == ["a", None, None, "b"]


def test_names_of_attribute_targets(tmp_path):
    source = """
    class M(nn.Module):
        def forward(self, x):
            self.cache = x * 2
            self.cache[0] = x[1]
            self.cache += x
            return self.cache
    """
    assert names(trace(tmp_path, source, "x: B Dk", target="M")) == ["self.cache", None, None, "self.cache"]


def test_indexed_update_is_one_step(tmp_path):
    traced = trace(tmp_path, "def f(x, y):\n    a = x.exp()\n    a[0] += y[0] * 2\n    return a", "x: B Dk", "y: B Dk")
    update = at(traced, "a[0] += y[0] * 2")
    assert [step.expression for step in traced.steps] == ["x.exp()", "y[0]", "y[0] * 2", "a[0] += y[0] * 2"]
    assert update.operation == "torch.Tensor.add_"
    assert update.source.line == 10
    assert [reference.step for reference in update.operands] == [1, 3]
    (output,) = update.outputs
    assert (output.name, output.tensor.signature, output.tensor.storage.kind) == ("a", "B Dk", "inplace")
    assert output.tensor.storage.of.step == 1
    assert output.tensor.storage.root.step == 1
    assert traced.outputs[0].of.step == update.index


def test_indexed_updates_in_a_loop(tmp_path):
    traced = trace(
        tmp_path, "def f(x):\n    a = x.exp()\n    for i in range(2):\n        a[i] *= 2\n    return a", "x: B Dk"
    )
    assert [step.expression for step in traced.steps] == ["x.exp()", "a[i] *= 2", "a[i] *= 2"]
    assert traced.steps[2].outputs[0].tensor.storage.of.step == 2


def test_chained_calls_have_their_own_expressions(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    a = x.exp().tanh().view(-1)  # flat\n    return a", "x: B Dk")
    assert [step.expression for step in traced.steps] == ["x.exp()", "x.exp().tanh()", "x.exp().tanh().view(-1)"]
    assert {(step.source.line, step.source.column) for step in traced.steps} == {(9, 9)}


def test_call_keeps_its_position_after_specialisation(tmp_path):
    source = """
    def rows(x):
        return list(x)

    def f(x):
        for _ in range(20):
            made = rows(x)
        return made[0]
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert {step.expression for step in traced.steps} == {"list(x)"}
    assert [(loop.first, loop.last, loop.count) for loop in traced.loops] == [(1, 1, 20), (1, 1, 2)]


def test_multiline_code_with_non_ascii_characters(tmp_path):
    source = """
    def f(x):
        größe, β = "äöü €", (
            x.mul(2)
            .add(3)
        )  # ünïcödé
        γ = β  +  1; δ = γ * "é€".__len__()
        return δ
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert [step.expression for step in traced.steps] == [
        "x.mul(2)",
        "x.mul(2)\n        .add(3)",
        "β  +  1",
        'γ * "é€".__len__()',
    ]
    assert names(traced) == [None, "β", "γ", "δ"]
    assert [step.source.line for step in traced.steps] == [10, 10, 13, 13]


def test_nested_functions_have_their_own_lines_and_names(tmp_path):
    source = """
    def twice(function):
        def wrapper(t):
            once = function(t)
            return function(once)
        return wrapper


    def f(x):
        @twice
        def step(t):
            raised = t + 1
            return raised * 2
        result = step(x)
        last = result - 1
        return last
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert names(traced) == ["raised", "once", "raised", "result", "last"]
    assert [step.source.function for step in traced.steps] == ["f.step"] * 4 + ["f"]


def test_decorated_method(tmp_path):
    source = """
    class M(nn.Module):
        @torch.no_grad()
        def forward(self, x):
            doubled = x * 2
            return doubled
    """
    traced = trace(tmp_path, source, "x: B Dk", target="M")
    assert names(traced) == ["doubled"]
    assert traced.steps[0].source.function == "M.forward"


MODULES = """
class Alone(nn.Module):
    forward = torch.relu


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, t):
        return t * self.weight


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.same = nn.Identity()
        self.drop = nn.Dropout(0.5)
        self.inner = Inner()
        self.mha = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lstm = nn.LSTM(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.act = F.gelu
        self.alone = Alone()

    def forward(self, x):
        BODY
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = self.fc(x)", ["a"]),
        ("a = self.seq(x)", ["a", "input", "input", "input"]),
        ("a = self.seq(x)[0]", [None, "input", "input", "input", "a"]),
        ("a = self.fc(self.fc(x))", [None, "a"]),
        ("a = self.fc(x) + 1", [None, "a"]),
        ("a = self.fc(x); return self.drop(a)", ["a", None]),
        ("a = self.drop(self.fc(x))", [None, "a"]),
        ("a = self.same(x * 2)", ["a"]),
        ("a = self.inner(x)", [None]),
        ("a = self.inner(x); return a + 1", ["a", None]),
        ("a = self.inner(x); return self.fc(a)", ["a", None]),
        ("a = self.act(x); return self.fc(a)", ["a", None]),
        ("a = self.act(x)", [None]),
        ("for layer in self.layers: x = layer(x)", ["x", "x"]),
        ("a, b = [layer(x) for layer in self.layers]; return a + b", ["a", "b", None]),
        ("a = (self.fc(x),)", [None]),
        ("a = self.lstm(x)[0]", [(None, None, None), "h_zeros", "c_zeros", (None, None, None)]),
        ("out, (h, c) = self.lstm(x)", [("out", None, None), "h_zeros", "c_zeros", (None, None, None)]),
    ],
)
def test_names_of_module_results(body, expected, tmp_path):
    traced = trace(tmp_path, MODULES.replace("BODY", body), "x: B L 4", target="M")
    assert traced.complete
    assert names(traced) == expected


def test_module_passed_as_an_argument_names_nothing(tmp_path):
    source = MODULES.replace("BODY", "h = [x * 2]; fc = self.fc; return sum(map(fc, h))")
    assert set(names(trace(tmp_path, source, "x: B L 4", target="M"))) == {None}


def test_multihead_attention_has_two_results(tmp_path):
    source = MODULES.replace("BODY", "out, weights = self.mha(x, x, x); return out, weights")
    traced = trace(tmp_path, source, "x: B L 4", target="M")
    assert step_named(traced, "out").outputs[0].tensor.signature == "B L 4"
    weights = step_named(traced, "weights")
    assert weights.outputs[-1].tensor.signature == "B L L"
    given = [output.name for step in traced.steps for output in step.outputs if output.name and step.parent is None]
    assert sorted(given) == ["out", "weights"]


def test_module_with_native_forward_is_complete(tmp_path):
    traced = trace(tmp_path, MODULES.replace("BODY", "a = self.alone(x); return a"), "x: B L 4", target="M")
    assert traced.complete
    assert traced.notes == ()


def test_lines_columns_and_files(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    return (x * 2\n            + 1)", "x: B Dk")
    first = HEAD.count("\n") + 2
    assert [(step.source.line, step.source.column) for step in traced.steps] == [(first, 13), (first, 13)]
    assert traced.steps[1].expression == "x * 2\n            + 1"
    assert traced.steps[0].source.file.endswith(".py")
