"""The truth of the benchmark of costs, against a dispatch mode; its table."""

import pytest
import torch

from benchmarks.cost_peer import PEERS, SUBJECTS
from benchmarks.ratio import Figures, render
from tests.cost.independent import Independent


@pytest.mark.parametrize("name", SUBJECTS)
def test_truth_is_every_product_of_matrices(name: str) -> None:
    module, inputs = SUBJECTS[name].build()
    with torch.enable_grad(), Independent() as independent:
        module(*inputs)
    assert independent.products == SUBJECTS[name].truth


def test_attnshape_counts_the_truth() -> None:
    subject = SUBJECTS["fused"]
    assert PEERS["attnshape"].count(*subject.build()) == subject.truth


def test_table_of_figures() -> None:
    table = Figures("costs", ["one", "other"], {"truth": ["8", "16"], "tool": ["1.00", "fails"]}, {"peer": "missing"})
    assert render(table).splitlines() == [
        "costs",
        "          one  other",
        "  truth     8     16",
        "  tool   1.00  fails",
        "  peer: not measured (missing)",
    ]
