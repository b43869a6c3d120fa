"""`--with key=query`: one tensor for several parameters."""

from pathlib import Path

import pytest
import torch

from attnshape.options.spec import DtypeName, RunOptions, TargetSpec
from attnshape.targets.find import find_target
from tests.cli.running import Attnshape

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, query, key, value, mask=None):
        assert query is key and key is value
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, x in ((self.q, query), (self.k, key), (self.v, value))
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Leaking(Attention):
    def forward(self, query, key, value):
        return super().forward(query, key, value) + query.roll(1, 0)
"""
SHARED = '--init "D, H" --input "query: B L D" --with key=query --with value=key'


def test_trace(attnshape: Attnshape, folder: Path) -> None:
    (folder / "shared.py").write_text(MODEL)
    result = attnshape(f"trace shared.py:Attention {SHARED} --format json")
    assert [(named["name"], named["tensor"]["storage"]["kind"]) for named in result.trace["inputs"]] == [
        ("query", "new"),
        ("key", "same"),
        ("value", "same"),
    ]
    assert result.trace["held_out"]["sizes"]


@pytest.mark.parametrize(("name", "status"), [("Attention", 0), ("Leaking", 1)])
def test_check_varies_them_together(attnshape: Attnshape, folder: Path, name: str, status: int) -> None:
    (folder / "shared.py").write_text(MODEL)
    result = attnshape(f"check shared.py:{name} {SHARED} -v")
    assert result.status == status, result.err
    assert ("batch elements don't affect each other" in result.out) == (name == "Attention")
    assert "the result depends on every input" in result.out


def test_expression_with_other_arguments(attnshape: Attnshape, folder: Path) -> None:
    (folder / "shared.py").write_text(MODEL)
    mask = '--with "mask=torch.ones(query.shape[1], L).tril().bool()"'
    result = attnshape(f"trace shared.py:Attention {SHARED} {mask} --format json")
    assert result.tensors["mask"]["signature"] == "L L"


def test_order_and_unknown_names(attnshape: Attnshape, folder: Path) -> None:
    (folder / "shared.py").write_text(MODEL)
    words = '--init "D, H" --input "query: B L D" --with value=key --with key=query'
    result = attnshape(f"trace shared.py:Attention {words}")
    assert result.status == 2
    assert "name 'key' is not defined" in result.err
    assert "the arguments query" in result.err


def test_size_wins_over_an_argument_of_its_name(attnshape: Attnshape, folder: Path) -> None:
    (folder / "shared.py").write_text("def f(L, n):\n    return L[:n]\n")
    result = attnshape('trace shared.py:f --input "L: L D" --with n=L-1 --length 7 --format json')
    assert result.trace["steps"][0]["outputs"][0]["tensor"]["shape"][0] == 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensor_that_a_case_passes_twice_stays_one(dtype: DtypeName) -> None:
    def case(B, L, D):
        x = torch.randn(B, L, D)
        return (lambda query, key, value: (query is key, key is value)), (x, x), {"value": x}

    runnable = find_target(TargetSpec("case", callable=case)).build({"B": 2, "L": 3, "D": 4}, RunOptions(dtype=dtype))
    query, key = runnable.args
    assert query is key is runnable.kwargs["value"]
    assert str(query.dtype) == f"torch.{dtype}"
