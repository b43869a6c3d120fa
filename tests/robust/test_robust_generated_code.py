"""Generated attention code, with hostile names: traced to its end, drawn whole, in every format."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.robust.generated import module
from tests.robust.output_parsers import FORMATS, assert_drawn, attnshape

_LONGEST = 60
"""Seconds that no trace of a dozen lines takes, however busy the machine is."""


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), width=st.sampled_from([40, 80, 100, 200]), explain=st.booleans())
def test_generated_code(seed: int, width: int, explain: bool, tmp_path_factory: pytest.TempPathFactory):
    made = module(seed)
    folder = tmp_path_factory.mktemp("generated")
    (folder / made.file).write_text(made.source, encoding="utf-8")
    words = [f"{folder / made.file}:{made.name}", "--init", "D, H", "--input", "inputs: B L D"]
    words += [f"--dim={letter}={size}" for letter, size in made.sizes.items() if letter not in "BLHD"]
    flags = {"B": "--batch", "L": "--length", "H": "--heads", "D": "--d-model"}
    words += [word for letter, size in made.sizes.items() for word in (flags[letter], str(size))]
    saved = folder / "saved.json"
    started = time.monotonic()
    done = attnshape("trace", *words, "--format", "json", "--output", str(saved))
    assert time.monotonic() - started < _LONGEST, made.source
    assert done.status in (0, 1), (done.err, made.source)
    assert (done.out, done.err) == ("", ""), (done.err, made.source)
    text = saved.read_text(encoding="utf-8")
    assert_drawn("json", text, width)
    assert "the recorder failed" not in text, (text[-2000:], made.source)
    assert '"broken"' not in text
    for format_ in FORMATS[:2]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            shown = attnshape("show", str(saved), "--format", format_, *["--explain"] * explain)
        assert (shown.status, shown.err) == (0, ""), (shown.err, made.source)
        assert_drawn(format_, shown.out, width, explain)
