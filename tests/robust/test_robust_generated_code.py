"""Generated attention code with hostile names can be traced and displayed in every format."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.robust.generated import module
from tests.robust.output_parsers import FORMATS, assert_drawn, attnshape

_LONGEST = 60
"""Seconds, more than any trace of a dozen lines takes even on a busy machine."""


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), width=st.sampled_from([40, 80, 100, 200]), explain=st.booleans())
def test_trace_of_generated_code(seed: int, width: int, explain: bool, tmp_path_factory: pytest.TempPathFactory):
    generated = module(seed)
    folder = tmp_path_factory.mktemp("generated")
    (folder / generated.file).write_text(generated.source, encoding="utf-8")
    words = [f"{folder / generated.file}:{generated.name}", "--init", "D, H", "--input", "inputs: B L D"]
    words += [f"--dim={symbol}={size}" for symbol, size in generated.sizes.items() if symbol not in "BLHD"]
    flags = {"B": "--batch", "L": "--length", "H": "--heads", "D": "--d-model"}
    words += [word for symbol, size in generated.sizes.items() for word in (flags[symbol], str(size))]
    saved = folder / "saved.json"
    started = time.monotonic()
    done = attnshape("trace", *words, "--format", "json", "--output", str(saved))
    assert time.monotonic() - started < _LONGEST, generated.source
    assert done.status in (0, 1), (done.err, generated.source)
    assert (done.out, done.err) == ("", ""), (done.err, generated.source)
    text = saved.read_text(encoding="utf-8")
    assert_drawn("json", text, width)
    assert "the recorder failed" not in text, (text[-2000:], generated.source)
    assert '"broken"' not in text
    for format_ in FORMATS[:2]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            displayed = attnshape("show", str(saved), "--format", format_, *["--explain"] * explain)
        assert (displayed.status, displayed.err) == (0, ""), (displayed.err, generated.source)
        assert_drawn(format_, displayed.out, width, explain)
