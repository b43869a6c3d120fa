"""Annotations in the user's own code: right ones count as checked, wrong ones are named, luck doesn't help."""

import pytest

from tests.tracing.traced_source import HEAD, step_named, trace

SOURCE = """
from jaxtyping import Bool, Float, Int


def f(q, k):
    scores: Float[Tensor, "DIMS"] = q @ k.mT
    return scores
"""
INPUTS = ("q: B Lq Dk", "k: B Lk Dk")


def checked(made, name):
    output = step_named(made, name).outputs[0]
    return output.tensor.declared, output.tensor.checked


@pytest.mark.parametrize(
    "dims", ["B Lq Lk", "B   Lq Lk", "b q k", "batch Lq Lk", "... Lk", "*batch Lq Lk", "B _ Lk", "B Lq 1*Lk"]
)
def test_a_right_one(dims, tmp_path):
    made = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS)
    assert checked(made, "scores") == (" ".join(dims.split()), "declared")
    assert not made.found_something
    assert not any("wrong annotation" in note for note in made.notes)


@pytest.mark.parametrize(
    "dims", ["B Lk Lq", "B Lq Lq", "Lq B Lk", "B Lq", "B Lq Lk 1", "B Lq Dk", "B Lq 2*Lk", "B Lq 16 1", "B Lq ("]
)
def test_a_wrong_one(dims, tmp_path):
    made = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS)
    assert checked(made, "scores") == (dims, None)
    assert made.found_something
    assert made.complete
    (note,) = [note for note in made.notes if "wrong annotation" in note]
    assert "scores" in note
    assert dims in note
    assert "B Lq Lk" in note
    assert f":{HEAD.count(chr(10)) + 5}:" in note


@pytest.mark.parametrize("dims", ["B Lk Lq", "B Lq Lq", "B Lk Lk", "Lq B Lk", "7 7 7"])
def test_one_that_holds_by_luck_at_equal_sizes(dims, tmp_path):
    made = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS, B=7, Lq=7, Lk=7, Dk=64)
    assert checked(made, "scores") == (dims, None)
    assert made.found_something


def test_the_right_one_at_equal_sizes(tmp_path):
    made = trace(tmp_path, SOURCE.replace("DIMS", "B Lq Lk"), *INPUTS, B=7, Lq=7, Lk=7, Dk=64)
    assert checked(made, "scores") == ("B Lq Lk", "declared")


def test_a_letter_of_the_codes_own_is_the_same_within_one_annotation(tmp_path):
    made = trace(tmp_path, SOURCE.replace("DIMS", "B n n"), *INPUTS)
    assert checked(made, "scores") == ("B n n", None)


@pytest.mark.parametrize(
    ("line", "declared", "verdict"),
    [
        ("a: \"Float[Tensor, 'B Lq Dk']\" = q * 2", None, "inferred"),
        ("a: Tensor = q * 2", None, "inferred"),
        ("a = q * 2", None, "inferred"),
        ('a: Float[Tensor, "B Lq Dk"] | None = q * 2', "B Lq Dk", "declared"),
        ('a: None | Float[Tensor, "B Lq Dk"] = q * 2', "B Lq Dk", "declared"),
        ('a: Float[torch.Tensor, "B Lq Dk"] = q * 2', "B Lq Dk", "declared"),
        ('self.a: Float[Tensor, "B Lq Dk"] = q * 2', "B Lq Dk", "declared"),
    ],
)
def test_forms_of_annotations(line, declared, verdict, tmp_path):
    source = f"""
    from types import SimpleNamespace
    from jaxtyping import Bool, Float

    self = SimpleNamespace()

    def f(q):
        {line}
    """
    made = trace(tmp_path, source, "q: B Lq Dk")
    assert (made.steps[0].outputs[0].tensor.declared, made.steps[0].outputs[0].tensor.checked) == (declared, verdict)


def test_every_step_without_an_annotation_is_checked_as_inferred(tmp_path):
    source = "def f(x):\n    a = x.view(*x.shape[:2], -1, 8)\n    b, c = a.unbind(0)[:2]\n    return b.sum(), a.mT"
    made = trace(tmp_path, source, "x: B L D", D=64)
    tensors = [output.tensor for step in made.steps for output in step.outputs]
    assert len(tensors) >= 4
    assert {tensor.checked for tensor in tensors} == {"inferred"}
    assert {named.tensor.checked for named in made.inputs} == {"inferred"}


@pytest.mark.parametrize(
    ("kind", "verdict"), [("Bool", "declared"), ("Float", None), ("Int", None), ("Shaped", "declared")]
)
def test_the_annotations_dtype_counts(kind, verdict, tmp_path):
    source = f"""
    from jaxtyping import Bool, Float, Int, Shaped

    def f(x):
        a: {kind}[Tensor, "B Dk"] = x > 0
        return a
    """
    made = trace(tmp_path, source, "x: B Dk")
    assert checked(made, "a") == ("B Dk", verdict)


@pytest.mark.parametrize(
    ("returned", "holds"),
    [('Float[Tensor, "B Lq Dk"]', True), ('Float[Tensor, "B Dk Lq"]', False), ('Int[Tensor, "B Lq Dk"]', False)],
)
def test_the_targets_own_return_annotation_is_an_expectation(returned, holds, tmp_path):
    source = f"""
    from jaxtyping import Float, Int

    def f(q) -> {returned}:
        return q * 2
    """
    made = trace(tmp_path, source, "q: B Lq Dk", Lq=8, Dk=8)
    assert [expectation.holds for expectation in made.expectations] == [holds]
    assert made.found_something is not holds


def test_a_return_annotation_in_letters_of_another_kind_is_left_alone(tmp_path):
    source = """
    from jaxtyping import Float

    def f(q) -> Float[Tensor, "batch *rest"]:
        return q * 2
    """
    assert trace(tmp_path, source, "q: B Lq Dk").expectations == ()
