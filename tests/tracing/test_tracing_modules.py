"""Each step has the path of its module."""

from tests.tracing.traced_source import trace

SOURCE = """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, t):
        return self.proj(t) * 2


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(), Head()])
        self.named = nn.ModuleDict({"last": nn.Linear(4, 4)})
        self.shared = self.heads[0]

    def forward(self, x):
        y = x + 1
        for head in self.heads:
            y = head(y)
        loose = nn.Linear(4, 4)
        y = loose(y)
        return self.named["last"](y) - 1

    def only(self, x):
        return self.heads[1](x)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Raising()
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        try:
            self.first(x)
        except ValueError:
            pass
        return self.second(x) + 1


class Raising(nn.Module):
    def forward(self, x):
        x = x * 2
        raise ValueError
"""


def paths(traced):
    return [(step.operation.rpartition(".")[2], step.module) for step in traced.steps if step.module != "init"]


def test_paths_of_modules(tmp_path):
    traced = trace(tmp_path, SOURCE, "x: B L 4", target="M")
    found = [path for path in paths(traced) if path[0] in {"add", "sub", "mul", "linear"}]
    assert found == [
        ("add", None),
        ("linear", "heads.0.proj"),
        ("mul", "heads.0"),
        ("linear", "heads.1.proj"),
        ("mul", "heads.1"),
        ("linear", None),
        ("linear", "named.last"),
        ("sub", None),
    ]


def test_method_has_the_paths_of_its_module(tmp_path):
    assert paths(trace(tmp_path, SOURCE, "x: B L 4", target="M.only")) == [
        ("linear", "heads.1.proj"),
        ("mul", "heads.1"),
    ]


def test_submodule_as_target_has_relative_paths(tmp_path):
    assert paths(trace(tmp_path, SOURCE, "t: B L 4", target="M().heads[0]")) == [("linear", "proj"), ("mul", None)]


def test_module_that_raised_is_exited(tmp_path):
    traced = trace(tmp_path, SOURCE, "x: B L 4", target="Failing")
    assert traced.complete
    assert paths(traced) == [("mul", "first"), ("linear", "second"), ("add", None)]


def test_operands_are_parameter_paths(tmp_path):
    traced = trace(tmp_path, SOURCE, "x: B L 4", target="M.only")
    assert [reference.parameter for reference in traced.steps[0].operands][1:] == [
        "heads.1.proj.weight",
        "heads.1.proj.bias",
    ]
