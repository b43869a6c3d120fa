"""The process that proves, for the tests of one module."""

from collections.abc import Iterator

import pytest

from attnshape.proving.prover import Prover


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with Prover() as one:
        yield one
