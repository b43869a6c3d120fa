"""Annotations in the user's code: right ones count as checked, and wrong ones are reported, also at equal sizes."""

import pytest

from tests.tracing.traced_source import HEAD, step_named, trace

SOURCE = """
from jaxtyping import Bool, Float, Int


def f(q, k):
    scores: Float[Tensor, "DIMS"] = q @ k.mT
    return scores
"""
INPUTS = ("q: B Lq Dk", "k: B Lk Dk")


def checked(traced, name):
    output = step_named(traced, name).outputs[0]
    return output.tensor.declared, output.tensor.checked


@pytest.mark.parametrize(
    "dims", ["B Lq Lk", "B   Lq Lk", "b q k", "batch Lq Lk", "... Lk", "*batch Lq Lk", "B _ Lk", "B Lq 1*Lk"]
)
def test_right_annotation(dims, tmp_path):
    traced = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS)
    assert checked(traced, "scores") == (" ".join(dims.split()), "declared")
    assert not traced.found_something
    assert not any("wrong annotation" in note for note in traced.notes)


@pytest.mark.parametrize(
    "dims", ["B Lk Lq", "B Lq Lq", "Lq B Lk", "B Lq", "B Lq Lk 1", "B Lq Dk", "B Lq 2*Lk", "B Lq 16 1", "B Lq ("]
)
def test_wrong_annotation(dims, tmp_path):
    traced = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS)
    assert checked(traced, "scores") == (dims, None)
    assert traced.found_something
    assert traced.complete
    (note,) = [note for note in traced.notes if "wrong annotation" in note]
    assert "scores" in note
    assert dims in note
    assert "B Lq Lk" in note
    assert f":{HEAD.count(chr(10)) + 5}:" in note


@pytest.mark.parametrize("dims", ["B Lk Lq", "B Lq Lq", "B Lk Lk", "Lq B Lk", "7 7 7"])
def test_wrong_annotation_at_equal_sizes(dims, tmp_path):
    traced = trace(tmp_path, SOURCE.replace("DIMS", dims), *INPUTS, B=7, Lq=7, Lk=7, Dk=64)
    assert checked(traced, "scores") == (dims, None)
    assert traced.found_something


def test_right_annotation_at_equal_sizes(tmp_path):
    traced = trace(tmp_path, SOURCE.replace("DIMS", "B Lq Lk"), *INPUTS, B=7, Lq=7, Lk=7, Dk=64)
    assert checked(traced, "scores") == ("B Lq Lk", "declared")


def test_custom_name_is_consistent_within_an_annotation(tmp_path):
    traced = trace(tmp_path, SOURCE.replace("DIMS", "B n n"), *INPUTS)
    assert checked(traced, "scores") == ("B n n", None)


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
    traced = trace(tmp_path, source, "q: B Lq Dk")
    assert (traced.steps[0].outputs[0].tensor.declared, traced.steps[0].outputs[0].tensor.checked) == (
        declared,
        verdict,
    )


def test_steps_without_annotations_are_checked_as_inferred(tmp_path):
    source = "def f(x):\n    a = x.view(*x.shape[:2], -1, 8)\n    b, c = a.unbind(0)[:2]\n    return b.sum(), a.mT"
    traced = trace(tmp_path, source, "x: B L D", D=64)
    tensors = [output.tensor for step in traced.steps for output in step.outputs]
    assert len(tensors) >= 4
    assert {tensor.checked for tensor in tensors} == {"inferred"}
    assert {named.tensor.checked for named in traced.inputs} == {"inferred"}


@pytest.mark.parametrize(
    ("kind", "verdict"), [("Bool", "declared"), ("Float", None), ("Int", None), ("Shaped", "declared")]
)
def test_annotated_dtype_is_checked(kind, verdict, tmp_path):
    source = f"""
    from jaxtyping import Bool, Float, Int, Shaped

    def f(x):
        a: {kind}[Tensor, "B Dk"] = x > 0
        return a
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert checked(traced, "a") == ("B Dk", verdict)


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        ("Bool, 'b q d'", "declared Bool and has dtype float32"),
        ("Bool, 'B Lq Dk'", "declared Bool and has dtype float32"),
        ("Int, '...'", "declared Int and has dtype float32"),
        ("Bool, 'B Dk Lq'", "declared Bool and has dtype float32, declared 'B Dk Lq' and is 'B Lq Dk'"),
        ("Float, 'B Dk Lq'", "declared 'B Dk Lq' and is 'B Lq Dk'"),
        ("Shaped, 'B Dk Lq'", "declared 'B Dk Lq' and is 'B Lq Dk'"),
    ],
)
def test_wrong_dtype_is_told_from_a_wrong_shape(annotation, complaint, tmp_path):
    kind, dims = annotation.split(", ")
    source = f"""
    from jaxtyping import Bool, Float, Int, Shaped

    def f(q):
        a: {kind}[Tensor, {dims}] = q * 2
        return a
    """
    traced = trace(tmp_path, source, "q: B Lq Dk")
    (note,) = [note for note in traced.notes if "wrong annotation" in note]
    assert note.partition(": a is ")[2] == complaint


@pytest.mark.parametrize(
    ("returned", "holds"),
    [('Float[Tensor, "B Lq Dk"]', True), ('Float[Tensor, "B Dk Lq"]', False), ('Int[Tensor, "B Lq Dk"]', False)],
)
def test_return_annotation_is_an_expectation(returned, holds, tmp_path):
    source = f"""
    from jaxtyping import Float, Int

    def f(q) -> {returned}:
        return q * 2
    """
    traced = trace(tmp_path, source, "q: B Lq Dk", Lq=8, Dk=8)
    (expectation,) = traced.expectations
    assert expectation.holds == holds
    assert ("its dtype is float32, expected Int" in (expectation.why or "")) == ("Int" in returned)
    assert traced.found_something is not holds


def test_return_annotation_with_unknown_names_is_ignored(tmp_path):
    source = """
    from jaxtyping import Float

    def f(q) -> Float[Tensor, "batch *rest"]:
        return q * 2
    """
    assert trace(tmp_path, source, "q: B Lq Dk").expectations == ()
