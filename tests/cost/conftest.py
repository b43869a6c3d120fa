import pytest

from tests.cli.running import attnshape, folder, root
from tests.cost.measuring import Measured, measured

__all__ = ["attnshape", "default_trace", "folder", "root"]


@pytest.fixture(scope="session")
def default_trace() -> Measured:
    """The trace whose memory is the baseline."""
    return measured("trace")
