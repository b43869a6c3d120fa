"""Whether every test runs, or the ten minutes' worth of them that always do."""

from __future__ import annotations

import os

import pytest

EVERY = bool(os.environ.get("ATTNSHAPE_EVERY_SIZE"))
THOROUGH = pytest.mark.skipif(not EVERY, reason="it takes many seconds; run with ATTNSHAPE_EVERY_SIZE=1")
