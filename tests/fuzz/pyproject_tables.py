"""Tables of targets in pyproject.toml: valid ones, ones with one mistake, and files that are no TOML."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

_NAMES = ("t", "注意", "a b", '"', "a.b", "-x", "[red]", "x" * 200, "\u202e")
_VALID: dict[str, tuple[object, ...]] = {
    "init": ("D, H", "D, H=H"),
    "inputs": (["x: B L D"], {"x": "B L D"}, "x: B L D"),
    "batch": (1, 2),
    "length": (2, 3),
    "claims": (["causal"], {"causal": True}, {"causal": False}),
    "dtype": ("float64",),
    "device": ("cpu", "meta"),
    "seed": (0, 7),
    "train": (True, False),
    "dim": ({"T": 3}, {"T": "2*L"}, ["T=4"]),
    "sizes": ({"B": 1}, [{"B": 1}, {"B": 2}], [{"L": 2, "B": "L"}]),
}
_INVALID: dict[str, tuple[object, ...]] = {
    "target": (3, [], "", " ", {}, True, 1.5, "code.py:nosuch", "nosuch", "\x1b[31m"),
    "init": (3, ["D"], "D; H", "D, H, 7", ")", {}),
    "inputs": ([], [3], {"x": 3}, ["x"], 5, {"nosuch": "B"}, ["x: Q"], True),
    "batch": (0, -1, 1.5, "two", True, [], 10**30),
    "d-model": (0, "x", {}, float("nan")),
    "claims": (3, [], ["casual"], [3], {"mask": "kept"}),
    "dtype": ("float31", 3, []),
    "device": ("tpu", 3),
    "seed": (-1, "x", 2**64),
    "train": ("yes", 3),
    "dropout": (1, -0.5, "x"),
    "mask-value": (1, "x", True),
    "dim": ({"B": 3}, {"T": 0}, {"T": "T"}, ["T"], 3, {"T": []}),
    "sizes": ([], {}, [{}], [{"B": 0}], [{"B": 1}, {"B": 1}], 3, {"Q": "R"}, [{"B": "B"}]),
    "nosuch": (1, "x"),
    "Batch": (1,),
    "expect": (["nosuch: B"], [3], 3, ["output"]),
}
_BROKEN = (
    b"[tool", b"tool = 3", b"[tool]\nattnshape = []", b"[tool.attnshape]\ntargets = 3", b"\xff\xfe[tool]",
    b"[tool.attnshape.targets]\nt = 3", b"a = 1\na = 2", b"\x00" * 40, b"x = " + b"[" * 10_000,
    b"[tool.attnshape.targets]\nt = []", b"\xef\xbb\xbf[tool", b"x = '" + b"y" * 1_000_000, b'x = "\xd8\x00"',
)  # fmt: skip


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_text(key)} = {_toml(item)}' for key, item in value.items())} }}"
    return str(value)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def table(name: str, values: dict[str, object]) -> bytes:
    """Return a pyproject.toml with one target."""
    lines = [f"[tool.attnshape.targets.{_text(name)}]", *(f"{_text(k)} = {_toml(v)}" for k, v in values.items())]
    return "\n".join([*lines, ""]).encode()


@st.composite
def pyproject_lines(draw: DrawFn) -> tuple[tuple[str, ...], frozenset[int], bytes, str]:
    """Draw a line that uses a target of pyproject.toml: its words, the expected statuses, the file, and why."""
    kind = draw(st.integers(0, 9))
    verb = ("trace",) if kind % 3 else ("check", "--select=AS0")
    if kind == 0:
        return (*verb, "t"), frozenset({2}), draw(st.sampled_from(_BROKEN)), "a broken pyproject.toml"
    name = draw(st.sampled_from(_NAMES))
    values: dict[str, object] = {"target": "code.py:Attention", "init": "D, H", "inputs": ["x: B L D"]}
    values |= {"heads": 2, "d-model": 4, "length": 3}
    if kind <= 4:
        for key in draw(st.lists(st.sampled_from(tuple(_VALID)), max_size=3, unique=True)):
            values[key] = draw(st.sampled_from(_VALID[key]))
        for key, symbol in (("length", "L"), ("batch", "B")):
            if symbol in str(values.get("sizes")):
                values.pop(key, None)  # either a target or each of its sets of sizes gives a size
        # check runs on no other device, and the claims aren't about a trace
        statuses = {0} if verb == ("trace",) else {0, 1, 2}
        return (*verb, "--", name), frozenset(statuses), table(name, values), "a valid table"
    key = draw(st.sampled_from(tuple(_INVALID)))
    values[key] = draw(st.sampled_from(_INVALID[key]))
    # a trace alone has the tensors of which something is expected
    statuses = {0, 2} if key == "expect" and verb != ("trace",) else {2}
    return (*verb, "--", name), frozenset(statuses), table(name, values), f"the key {key} has a bad value"
