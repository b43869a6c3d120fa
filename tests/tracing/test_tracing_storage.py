"""The storage of each result: new, a view, the same tensor, or an in-place write."""

import gc
import weakref

import pytest
import torch

from attnshape.model.trace import Reference
from attnshape.tracing.runner import Runnable, record
from tests.tracing.traced_source import step_named, trace


def storage(traced, name):
    """Return the kind, the origin and the root of the last tensor with that name."""
    outputs = [output for step in traced.steps for output in step.outputs if output.name == name]
    found = outputs[-1].tensor.storage
    return found.kind, found.of, found.root


X = Reference(input="x")
ONE = Reference(step=1)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x * 2", "new"),
        ("x.clone()", "new"),
        ("x.contiguous()", "same"),
        ("x.mT.contiguous()", "new"),
        ("x.view(-1)", "view"),
        ("x.reshape(-1)", "view"),
        ("x.mT.reshape(-1)", "new"),
        ("x.flatten()", "view"),
        ("x.transpose(0, 1)", "view"),
        ("x.permute(1, 0)", "view"),
        ("x.T", "view"),
        ("x.mT", "view"),
        ("x[0]", "view"),
        ("x[None]", "view"),
        ("x[[0, 1]]", "new"),
        ("x[x > 0]", "new"),
        ("x.unsqueeze(0).squeeze(0)", "view"),
        ("x.expand(3, *x.shape)", "view"),
        ("x.repeat(2, 1)", "new"),
        ("x.detach()", "view"),
        ("x.data", "view"),
        ("x.to(torch.float32)", "same"),
        ("x.to('cpu')", "same"),
        ("x.to(torch.float64)", "new"),
        ("x.float()", "same"),
        ("x.double()", "new"),
        ("x.type_as(x)", "same"),
        ("F.dropout(x, 0.5, training=False)", "same"),
        ("F.dropout(x, 0.5, training=True)", "new"),
        ("F.dropout(x, 0.5, False)", "same"),
        ("nn.Dropout(0.5).eval()(x)", "same"),
        ("x.relu()", "new"),
        ("x.relu_()", "inplace"),
        ("F.relu(x, inplace=True)", "inplace"),
        ("nn.ReLU(inplace=True)(x)", "inplace"),
        ("torch.mul(x.clone(), 2, out=x)", "inplace"),
        ("x.masked_fill_(x > 0, 0.0)", "inplace"),
        ("x.zero_()", "inplace"),
        ("x.narrow(1, 0, 2)", "view"),
        ("x.unflatten(1, (-1, 1))", "view"),
        ("x.as_strided((2, 2), (1, 1))", "view"),
        ("torch.zeros(3)", "new"),
    ],
)
def test_storage_kind(expression, kind, tmp_path):
    traced = trace(tmp_path, f"def f(x):\n    found = {expression}\n    return found", "x: B Dk")
    actual, of, root = storage(traced, "found")
    assert actual == kind
    if kind == "new":
        assert (of, root) == (None, None)
    else:
        assert root == X


def test_view_of_a_view_has_the_same_root(tmp_path):
    body = "base = x * 2\n    a = base.view(-1)\n    b = a[1:]\n    c = b.unsqueeze(0)\n    return c"
    traced = trace(tmp_path, f"def f(x):\n    {body}", "x: B Dk")
    assert [storage(traced, name) for name in "abc"] == [
        ("view", ONE, ONE),
        ("view", Reference(step=2), ONE),
        ("view", Reference(step=3), ONE),
    ]


def test_each_part_of_a_split_is_a_view(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    both = x * 2\n    a, b = both.chunk(2, -1)\n    return a + b", "x: B Dk")
    for name, offset in (("a", 0), ("b", 32)):
        assert storage(traced, name) == ("view", ONE, ONE)
        found = next(o for o in step_named(traced, name).outputs if o.name == name)
        assert found.tensor.offset == offset


def test_views_of_parameters_buffers_and_closures(tmp_path):
    source = """
    table = torch.ones(3, 4)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4))
            self.register_buffer("mask", torch.ones(3, 4))
            self.loose = torch.ones(3, 4)

        def forward(self, x):
            a = self.weight[0]
            b = self.mask[0]
            c = table[0]
            d = self.loose.view(-1)
            e = self.weight.add_(1)
            return a, b, c, d, e, x * 1
    """
    traced = trace(tmp_path, source, "x: B 4", target="M")
    weight, constant = Reference(parameter="weight"), Reference(constant=True)
    assert storage(traced, "a") == ("view", weight, weight)
    assert storage(traced, "b") == ("view", Reference(parameter="mask"), Reference(parameter="mask"))
    assert storage(traced, "c") == ("view", constant, constant)
    assert storage(traced, "d") == ("view", constant, constant)
    assert storage(traced, "e") == ("inplace", weight, weight)


def test_write_to_a_view_refers_to_the_view(tmp_path):
    source = "def f(x):\n    base = x * 2\n    part = base[0]\n    part += 1\n    after = base + 0\n    return after"
    traced = trace(tmp_path, source, "x: B Dk")
    assert storage(traced, "part") == ("inplace", Reference(step=2), ONE)
    assert traced.steps[3].operands == (ONE,)


def test_operands_after_a_write_refer_to_the_write(tmp_path):
    source = "def f(x):\n    base = x * 2\n    base[0] = 0\n    base += 1\n    after = base * 3\n    return after"
    traced = trace(tmp_path, source, "x: B Dk")
    assert [step.operands for step in traced.steps] == [
        (X,),
        (ONE,),
        (Reference(step=2),),
        (Reference(step=3),),
    ]
    assert {storage(traced, "base")[0]} == {"inplace"}


def test_in_place_write_in_inference_mode(tmp_path):
    source = """
    @torch.inference_mode()
    def f(x):
        a = x * 2
        a[0] = 1
        a += 1
        b = a.view(-1)
        return b
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert [step.outputs[0].tensor.storage.kind for step in traced.steps] == ["new", "inplace", "inplace", "view"]
    assert traced.steps[3].outputs[0].tensor.storage.root == ONE


def test_same_tensor_for_two_parameters(tmp_path):
    source = "def case(B, Dk):\n    t = torch.ones(B, Dk)\n    return f, (t, t)\n\n\ndef f(x, y):\n    return x + y"
    traced = trace(tmp_path, source, target="case")
    assert traced.inputs[1].tensor.storage.kind == "same"
    assert traced.inputs[1].tensor.storage.of == X
    assert traced.steps[0].operands == (X, X)


def test_reused_address_is_not_confused(tmp_path):
    source = """
    def f(x):
        kept = [x * 1]
        for i in range(300):
            temporary = x * 2
            address = temporary.data_ptr()
            del temporary
            other = x + 1
            kept.append(other.sum())
        return kept[-1]
    """
    traced = trace(tmp_path, source, "x: B Dk")
    # steps whose storage is another kind of storage aren't equal
    assert [(loop.first, loop.last, loop.count) for loop in traced.loops] == [(2, 4, 300)]
    assert {output.tensor.storage.kind for step in traced.steps for output in step.outputs} == {"new"}
    assert all(reference == X for step in traced.steps[1:] for reference in step.operands if reference.step is None)
    sums = [step for step in traced.steps if step.operation == "torch.Tensor.sum"]
    assert [step.operands for step in sums] == [(Reference(step=step.index - 1),) for step in sums]


def test_no_tensor_is_kept_alive():
    alive = []
    freed_during = []

    def f(x):
        a = x * 2
        alive.append(weakref.ref(a))
        b = a.view(-1) + 1
        alive.append(weakref.ref(b))
        first = weakref.ref(a)
        del a
        freed_during.append(first() is None)
        return b

    x = torch.ones(3, 4)
    runnable = Runnable(f, (x,))
    raw = record(runnable, 0)
    assert len(raw.steps) == 3
    assert freed_during == [True]
    assert [reference() for reference in alive] == [None, None]
    inputs = weakref.ref(x)
    del x, runnable
    assert inputs() is None


def test_intermediates_are_freed_during_the_run():
    references = []

    def f(x):
        for _ in range(20):
            x = x * 2
            references.append(weakref.ref(x.untyped_storage()))
        gc.collect()
        return sum(reference() is not None for reference in references)

    counts = []
    record(Runnable(lambda x: counts.append(f(x)), (torch.ones(8),)), 0)
    plain = []
    references.clear()
    plain.append(f(torch.ones(8)))
    assert counts == plain
