"""The kinds of differences, as `--fail-on` names them: alone, since the command line starts with them."""

from __future__ import annotations

from typing import Literal

Kind = Literal["size", "signature", "stride", "storage", "dtype", "steps"]
"""What a difference can be of; `steps` are those that came, went, moved, or do something else, and what is returned."""
KINDS: tuple[Kind, ...] = ("size", "signature", "stride", "storage", "dtype", "steps")
