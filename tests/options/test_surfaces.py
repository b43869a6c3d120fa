"""Options in the syntax of the command line, Python and pyproject.toml, as error messages suggest them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from attnshape.cli.app import app
from attnshape.dims.symbols import SYMBOLS
from attnshape.errors import AttnshapeError, Option, python_syntax
from attnshape.options.flags import flag_syntax, flag_words
from attnshape.options.pyproject import KEYS, decode_target, toml_syntax
from attnshape.options.spec import RunOptions, TargetSpec, decode_options, run_options
from tests.specs import spec_of

OPTIONS = [
    (Option("sizes", 4, "H"), "H=4", "--heads 4", "heads = 4"),
    (Option("sizes", key="H"), "H", "--heads", "the key heads"),
    (Option("sizes", 4, "nh"), "nh=4", "--dim nh=4", "dim = { nh = 4 }"),
    (Option("sizes", "nh*hs", "C"), 'C="nh*hs"', '--dim "C=nh*hs"', 'dim = { C = "nh*hs" }'),
    (Option("sizes", key="nh"), "nh", "--dim nh", "the key dim.nh"),
    (Option("init", "D, H"), 'init="D, H"', '--init "D, H"', 'init = "D, H"'),
    (Option("inputs", "B L D", "x"), 'inputs={"x": "B L D"}', '--input "x: B L D"', 'inputs = { x = "B L D" }'),
    (Option("inputs"), "inputs", "--input", "the key inputs"),
    (Option("arguments", "2*H", "s"), 'arguments={"s": "2*H"}', '--with "s=2*H"', 'with = { s = "2*H" }'),
    (Option("inside", "h.0.attn"), 'inside="h.0.attn"', "--inside h.0.attn", 'inside = "h.0.attn"'),
    (Option("expect", "B L", "y"), 'expect={"y": "B L"}', '--expect "y: B L"', 'expect = { y = "B L" }'),
    (Option("options", True, "causal"), 'options={"causal": True}', "--causal", "causal = true"),
    (Option("options", False, "bias"), 'options={"bias": False}', "--no-bias", "no-bias = true"),
    (Option("options", 0.0, "dropout"), 'options={"dropout": 0.0}', "--dropout 0.0", "dropout = 0.0"),
    (Option("claims", "scale=2*Dk"), 'claims=["scale=2*Dk"]', '--claim "scale=2*Dk"', 'claims = ["scale=2*Dk"]'),
    (Option("device", "meta"), 'device="meta"', "--device meta", 'device = "meta"'),
    (Option("train", True), "train=True", "--train", "train = true"),
    (Option("time_limit", 60), "time_limit=60", "--time-limit 60", "time-limit = 60"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "python", "flags", "toml"), OPTIONS, ids=[option[1] for option in OPTIONS])
def test_option_in_the_syntax_of_each_surface(option: Option, python: str, flags: str, toml: str) -> None:
    assert (python_syntax(option), flag_syntax(option), toml_syntax(option)) == (python, flags, toml)


@pytest.mark.parametrize(
    "option", [option[0] for option in OPTIONS if option[0].value is not None and option[0].field != "time_limit"]
)
def test_suggested_syntax_parses_to_the_option(option: Option) -> None:
    if option.field != "claims":
        own = "" if option.key == "nh" else "--dim nh=2 --dim hs=3"
        spec, run = spec_of(f"code.py:f {own} {flag_syntax(option)}")
        assert option in given_by(spec, run)
    table = tomllib.loads(f'target = "code.py:f"\n{toml_syntax(option)}')
    named = decode_target("f", {**table, "dim": {"nh": 2, "hs": 3, **table.get("dim", {})}})
    assert option in given_by(named.spec(), run_options(named.run(), ""))


def given_by(spec: TargetSpec, run: RunOptions) -> Iterator[Option]:
    yield from spec.given_options()
    yield from (Option(name, getattr(run, name)) for name in ("device", "train"))


def test_every_pyproject_key_has_a_flag_and_vice_versa() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    flags = {flag for verb in ("trace", "check") for parameter in verbs[verb].params for flag in parameter.opts}
    words = {"inputs": "input", "claims": "claim"}
    assert {f"--{words.get(key, key)}" for key in KEYS} - {"--target", "--sizes"} <= flags
    assert {symbol.flag.removeprefix("--") for symbol in SYMBOLS} <= {*KEYS}
    shared = {flag for parameter in verbs["diff"].params for flag in parameter.opts if flag.startswith("--")}
    of_the_process = {"--fail-on", "--format", "--output", "--time-limit", "--memory-limit"}
    assert shared - of_the_process <= {f"--{words.get(key, key)}" for key in KEYS}


NAMES = st.sampled_from(["x", "y", "mask"])
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=8).map(
    lambda text: " ".join(text.split())
).filter(bool)  # fmt: skip
SPECS = st.builds(
    TargetSpec,
    st.just("code.py:f"),
    init=st.none() | TEXTS.filter(lambda text: not text.startswith("-")),
    inputs=st.dictionaries(NAMES, st.lists(st.sampled_from(["B", "L", "7", "H*Dk", "-(-L//2)"])).map(" ".join)),
    sizes=st.dictionaries(st.sampled_from([symbol.name for symbol in SYMBOLS]), st.integers(1, 99)),
    options=st.fixed_dictionaries(
        {}, optional={"causal": st.just(True), "bias": st.just(False), "dropout": st.floats(0, 0.9)}
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(SPECS)
def test_flags_round_trip(spec: TargetSpec) -> None:
    words = [word for option in spec.given_options() for word in flag_words(option)]
    assert spec_of(spec.target, *words)[0] == spec
    line = shlex.join([spec.target, *words])
    assert spec_of(line)[0] == spec


def test_given_options_override_the_base() -> None:
    sizes, inputs = {"B": 3, "T": "2*B"}, {"x": "B", "y": "L"}
    base = TargetSpec("m.py:A", "D", inputs, sizes=sizes, options={"causal": True}, claims=("causal",))
    assert TargetSpec("name").merged_onto(base) == base
    assert TargetSpec("name", "H", sizes={"B": 5}, options={"bias": False}).merged_onto(base) == replace(
        base, init="H", sizes={"B": 5, "T": "2*B"}, options={"causal": True, "bias": False}
    )
    assert TargetSpec("name", arguments={"x": "3"}).merged_onto(base).inputs == {"y": "L"}
    assert TargetSpec("name", inputs={"z": "B"}).merged_onto(base).inputs == {"z": "B"}


@pytest.mark.parametrize(
    ("given_", "message", "hint"),
    [
        ({"device": "tpu"}, "device is 'tpu'", "meta"),
        ({"device": "cpu\n"}, "device is", "meta"),
        ({"dtype": "flaot64"}, "dtype is 'flaot64'", "did you mean float64?"),
        ({"seed": -1}, "seed is -1", "seed=1"),
        ({"seed": 2**64}, "seed is", "seed=1"),
        ({"seed": "1"}, "seed is '1'", "seed=1"),
        ({"train": 1}, "train is 1", "train=True"),
    ],
)
def test_invalid_run_options(given_: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        run_options(given_, "")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("given_", "message", "hint"),
    [
        ({"casual": True}, "there is no option 'casual'", "did you mean causal?"),
        ({"causal": 1}, 'options["causal"] is 1', "True"),
        ({"dropout": 1.0}, 'options["dropout"] is 1.0', "0.1"),
        ({"dropout": float("nan")}, 'options["dropout"] is nan', "0.1"),
        ({"mask_value": 0}, 'options["mask_value"] is 0', "-10000.0"),
    ],
)
def test_invalid_mechanism_options(given_: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        decode_options(given_)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
