"""Bad input gives one line with the error, one hint, exit status 2, and no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.cli.running import Attnshape, Result

BAD = """
import torch
from torch import nn

NUMBER = 3


class Attention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        if d_model % n_head:
            raise ValueError(f"width {d_model}\\nisn't divisible by {n_head} heads")
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x)


class Gadget(nn.Module):
    def __init__(self, gadget, gizmo):
        super().__init__()

    def forward(self, x, word: str):
        return x


class NeedsPackage(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        import not_installed.layers

    def forward(self, x):
        return x


def labelled(query, word: str, scale=1.0):
    return query


class Stops(nn.Module):
    def __init__(self):
        raise SystemExit(4)


class Property:
    @property
    def broken(self):
        raise ValueError("a broken property")


def attend(query, key, scale=1.0):
    return query @ key.mT * scale


def asserts(x):
    assert x.numel() > 10**9, "large inputs alone"
    return x + 1


def returns_a_number(B, L):
    return 5


def returns_no_arguments(B):
    return torch.add, 3


def fails_to_build(B, L):
    raise RuntimeError(f"nothing of {L}")


def open_axes(x: "Float[Tensor, '... L']"):
    return x


def number():
    return 7
"""

FILES = {
    "bad.py": BAD,
    "plain.py": "def double(x):\n    return x * 2\n",
    "missing.py": "import torch\nimport no_such_library\nassert no_such_library.a\n",
    "syntax.py": "x = 1\ny = = 2\n",
    "indent.py": "def f():\nreturn 1\n",
    "divides.py": "def half():\n    return 1 / 0\n\n\nhalf()\n",
    "inner.py": "import torch\nimport divides\n",
    "exits.py": "import sys\nsys.exit(5)\n",
    "empty.json": "",
    "text.json": "hello\n",
    "number.json": "3\n",
    "list.json": "[]\n",
    "object.json": "{}\n",
    "newer.json": '{"schema": "attnshape/trace/9"}\n',
    "several.json": '{"schema": "attnshape/traces/1", "results": []}\n',
    "foreign.json": '{"schema": {"a": 1}}\n',
    "deep.json": "[" * 100_000 + "]" * 100_000,
    "deeper.json": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "unclosed.json": "[" * 100_000,
    "huge_number.json": '{"schema": "attnshape/trace/1", "seed": 1' + "0" * 5000 + "}",
}

HOSTILE = "a\n\x1b[31m[bold red]b\r\u202e[/]{c}%s"

# arguments, text in the error, text in the hint
TABLE: list[tuple[str, str, str]] = [
    # sizes
    ("trace --heads 7 --d-model 512", "512/7", "multiple of 7"),
    ("trace --heads 5 --d-model 201", "201/5", "1, 3, 67, 201"),
    ("trace multi-head-concat --heads 7 --d-model 200", "200/7", "width"),
    ("trace --heads 0", "--heads is '0'", "--heads 4"),
    ("trace --heads -3", "--heads is '-3'", "--heads 4"),
    ("trace --length 0", "--length is '0'", "--length 4"),
    ("trace --heads 1.5", "--heads is '1.5'", "--heads 4"),
    ("trace --batch two", "--batch is 'two'", "--batch 4"),
    ("trace --batch ''", "--batch is ''", "--batch 4"),
    ("trace --keys 1e3", "--keys is '1e3'", "--keys 4"),
    ("trace --d-model nan", "--d-model is 'nan'", "--d-model 4"),
    ("trace --d-model 99999999999999999999999999", "--d-model is 99999999999999999999999999", "smaller"),
    (f"trace --batch {'9' * 5000}", "--batch is", "--batch"),
    ("trace --length 100000000", "GiB", "--device meta"),
    ("trace --length 1000000000000", "EiB", "--length"),
    ("trace --batch 1099511627776 --length 1099511627776", "EiB", "--batch"),
    ("trace --heads 1099511627776 --d-head 1099511627776", "--d-model is 12089", "smaller"),
    ("trace single-head --causal --length 10000000", "TiB", "--length"),
    ("trace bad.py:attend --input 'query: L L' --input 'key: L L' --length 10000000", "TiB", "--length"),
    (
        "trace bad.py:attend --input 'query: B*B*B*B L' --input 'key: L' --batch 100000000000",
        "EiB at its peak, while the target is built: inputs",
        "--batch",
    ),
    (
        "trace bad.py:asserts --input 'x: L' --length 1000000000000",
        "TiB at its peak, while the target is built: inputs",
        "--length",
    ),
    (
        "trace bad.py:asserts --input 'x: L L L L L' --length 1000000",
        "EiB at its peak, while the target is built: inputs",
        "--length",
    ),
    ("trace --heads 4 --d-model 512 --d-head 100", "4*100 = 400, but D = 512", "--d-model 400"),
    ("trace --length 10 --queries 5", "--length", "--queries and --keys"),
    ("trace --length 10 --keys 5", "--keys", "--queries and --keys"),
    (
        "trace bad.py:attend --input 'query: Hkv G' --input 'key: H G' --heads 6 --kv-heads 2 --group 2",
        "2*2 = 4",
        "three",
    ),
    ("trace bad.py:attend --input 'query: Hkv H' --input 'key: Hkv H' --heads 8 --kv-heads 3", "8/3", "--kv-heads"),
    ("trace single-head --queries 5", "--queries", "--length"),
    ("trace dot-product --queries 5 --keys 5", "self-attention", "--length"),
    ("trace average --keys 5", "average is self-attention", "--length"),
    ("trace multi-head:self_attention --queries 4", "multi-head:self_attention", "multi-head:cross_attention"),
    ("trace average:unbatched --batch 2", "average:unbatched takes no --batch", "average:batched"),
    ("trace --kv-heads 3", "multi-head takes no --kv-heads", "--heads (H)"),
    ("trace --window 3", "--window", "--length"),
    # custom size symbols
    ("trace --dim T", "--dim 'T'", "nh=4"),
    ("trace --dim T=", "--dim 'T='", "nh=4"),
    ("trace --dim 3=T", "--dim '3=T'", "nh=4"),
    ("trace --dim B=3", "--dim 'B=3'", "--batch"),
    ("trace --dim T=x+", "'x+'", "H*Dk"),
    ("trace --dim T=__import__('os')", "__import__", "H*Dk"),
    ("trace --dim T=U --dim U=T", "U", "--dim U=4"),
    ("trace --dim T=0", "--dim T is 0", "4"),
    ("trace --dim T=-2", "--dim T is -2", "4"),
    ("trace --dim T=2*Q", '--dim "T=2*Q": Q isn\'t a size symbol', "--dim Q=4"),
    ("trace --dim T=1//0", "1//0", "sizes"),
    ("trace --dim T=3 --dim T=4", "--dim gives T twice", "once"),
    # what to run
    ("trace mutli-head", "'mutli-head'", "multi-head?"),
    ("trace Average", "'Average'", "average"),
    ("trace zzz", "'zzz'", "scaled-dot-product"),
    ("trace ''", "empty", "attnshape catalog"),
    ("trace multi-head:", "multi-head:", "attnshape catalog multi-head"),
    ("trace multi-head:self", "'self'", "self_attention"),
    ("trace scaled-dot-product:nosuch", "'nosuch'", "with_heads"),
    ("trace plain.py", "no attention was found in plain.py", "plain.py:double"),
    ("trace bda.py:Attention", "bda.py", "bad.py?"),
    ("trace nosuch/model.py:A", "nosuch/model.py", "path"),
    ("trace folder:A", "folder is a folder", "folder/model.py"),
    ("trace folder/:A", "folder/ is a folder", "folder/model.py"),
    ("trace no_such_package.module:A", "no_such_package", "install"),
    ("trace :A", "''", "path/to/file.py:Name"),
    ("trace 'not a module:A'", "'not a module'", "package.module:Name"),
    ("trace bad.py:Attenton", "Attenton", "Attention?"),
    ("trace bad.py:zzzzz", "bad.py has no zzzzz", "attend"),
    ("trace torch.nn:MultiheadAtention", "MultiheadAtention", "MultiheadAttention?"),
    ("trace bad.py:NUMBER --input 'x: B'", "its type is int", "function"),
    ("trace 'bad.py:number()' --input 'x: B'", "its type is int", "function"),
    ("trace 'bad.py:number().nosuch'", "nosuch", "it has"),
    ("trace 'bad.py:number()[0]'", "number()[0]", "index"),
    ("trace 'bad.py:Property().broken'", "a broken property", "fix"),
    ("trace bad.py:Attention.forwardd --init 'D, H'", "forwardd", "forward?"),
    ("trace 'bad.py:Attention('", "'Attention('", "brackets"),
    ("trace 'bad.py:1 + 1'", "'1 + 1'", "layers[0].attn"),
    ("trace 'bad.py:lambda x: x'", "lambda", "layers[0].attn"),
    ("trace missing.py:A", "No module named 'no_such_library', at missing.py:2", "pip install no_such_library"),
    ("trace syntax.py:A", "SyntaxError: invalid syntax, at syntax.py:2", "fix"),
    ("trace indent.py:A", "indent.py:2", "fix"),
    ("trace divides.py:A", "ZeroDivisionError: division by zero, at divides.py:2", "fix"),
    ("trace inner.py:A", "ZeroDivisionError: division by zero, at inner.py:2", "fix"),
    ("trace exits.py:A", "SystemExit: 5, by sys.exit(5), at exits.py:2", "fix"),
    # how to build and call it
    ("trace bad.py:Gadget", "gadget, gizmo", "--init"),
    ("trace bad.py:Attention --init D --input 'x: B L D'", "n_head", "D=512"),
    (
        "trace bad.py:Attention --init 'D, 7' --input 'x: B L D'",
        "isn't divisible by 7 heads, at bad.py:12",
        "D=512",
    ),
    ("trace bad.py:Attention --init 'D, Q' --input 'x: B L D'", "name 'Q' is not defined", "--dim Q=4"),
    ("trace bad.py:Attention --init 'D, )' --input 'x: B L D'", "'D, )'", "n_head=H"),
    ("trace bad.py:Attention --init 'D); print(1' --input 'x: B L D'", "--init", "n_head=H"),
    ("trace bad.py:Attention --init 'D, H=' --input 'x: B L D'", "--init 'D, H='", "n_head=H"),
    ("trace bad.py:Attention --init 'D, 1/0' --input 'x: B L D'", "division by zero", "torch"),
    ("trace bad.py:Attention --init 'D, H, zz=1' --input 'x: B L D'", "zz", "D=512"),
    ("trace bad.py:Gadget --init '1, 2'", "takes x, word", '--input "x: B L D"'),
    ("trace bad.py:Stops --input 'x: B'", "sys.exit(4)", "trace"),
    ("trace bad.py:labelled", "query, word, scale", '--input "query:'),
    ("trace bad.py:labelled --input 'query: B L D'", "nothing is given for word", '--input "word:'),
    ("trace bad.py:attend --input 'query: B'", "what it takes couldn't be worked out", '--input "key: B H L Dk"'),
    ("trace bad.py:NeedsPackage", "can't run: No module named 'not_installed'", "pip install not_installed"),
    ("trace bad.py:NeedsPackage --init 'D, H' --input 'x: B'", "'not_installed', at", "pip install not_installed"),
    ("diff HEAD:bad.py bad.py:attend", "HEAD is a git revision, and this folder is in no git repository", "files"),
    ("trace bad.py:attend --input 'querry: B L D' --input 'key: B L D'", "'querry'", "query?"),
    ("trace bad.py:attend --input 'query: B Q' --input 'key: B'", "Q isn't a size symbol", "--dim Q=4"),
    ("trace bad.py:attend --input 'query: B lq' --input 'key: B'", "lq isn't a size symbol", "Lq"),
    ("trace bad.py:attend --input 'query: int[V] B' --input 'key: V'", "V isn't a size symbol", "--dim V=4"),
    ("trace bad.py:attend --input 'query: int[0] B' --input 'key: B'", "int[0]", "sizes"),
    ("trace bad.py:attend --input 'query: int[B' --input 'key: B'", "'int[B'", "int[V]"),
    (
        "check bad.py:attend --input 'query: B L D' --input 'key: int[9] B L D' --claim key=keep",
        "--claim key=keep: key holds whole numbers up to 8",
        "key: bool B L",
    ),
    (
        "check bad.py:Attention --init 'D, H' --input 'x: B L D' --claim x=bias",
        "x is the only tensor that is given",
        "claim nothing about it",
    ),
    (
        "trace bad.py:attend --input 'query: bool[B L]' --input 'key: B'",
        "the axes of a bool tensor have no brackets",
        'write --input "query: bool B L"',
    ),
    ("trace bad.py:attend --input 'query: complex B' --input 'key: B'", "complex isn't a size symbol", "the symbols"),
    ("trace bad.py:attend --input 'query: B/2' --input 'key: B'", "'B/2'", "did you mean B//2?"),
    ("trace bad.py:attend --input 'query: B (L' --input 'key: B'", "'(L'", "Dk//2"),
    ("trace bad.py:attend --input 'query: B L-50' --input 'key: B'", "negative", "sizes"),
    ("trace bad.py:attend --input 'query: B//0' --input 'key: B'", "B//0", "sizes"),
    ("trace bad.py:attend --input query", "--input 'query'", "query: B Lq D"),
    ("trace bad.py:attend --input ''", "--input ''", "query: B Lq D"),
    ("trace bad.py:attend --input ': B'", "--input ': B'", "query: B Lq D"),
    ("trace bad.py:attend --input 'query: B' --input 'query: L'", "--input gives query twice", "once"),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with scale", "--with 'scale'", "mask="),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'scale='", "--with 'scale='", "mask="),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'scale=('", "never closed", "brackets"),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'scale=x = 1'", "'x = 1'", "brackets"),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'scale=nosuch'", "nosuch", "(B, L)"),
    (
        "trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'scale=torch.nosuch'",
        "torch.nosuch",
        "torch",
    ),
    ("trace bad.py:attend --input 'query: B L' --input 'key: B L' --with 'zz=1'", "'zz'", "scale"),
    ("trace bad.py:attend --with 'query=1' --with 'query=2'", "--with gives query twice", "once"),
    ("trace bad.py:returns_a_number", "returned int", "--input"),
    ("trace bad.py:returns_no_arguments", "returned tuple", "--input"),
    ("trace bad.py:fails_to_build", "RuntimeError: nothing of 10, at bad.py:", "case"),
    ("trace bad.py:attend --causal", "--causal", "multi-head"),
    ("trace bad.py:attend --no-bias", "bias", "multi-head"),
    # what built-in mechanisms take
    ("trace --init D", "--init", "attnshape catalog multi-head"),
    ("trace average --input 'x: B'", "--input", "attnshape catalog average"),
    ("trace average --with x=1", "--with", "attnshape catalog average"),
    ("trace average --dropout .1", "--dropout", "--causal"),
    ("trace average --no-bias", "--no-bias", "--causal"),
    ("trace single-head --padding", "--padding", "--causal"),
    ("trace scaled-dot-product:unbatched --padding", "--padding", "--causal"),
    ("trace --dropout 1", "--dropout is 1", "0.1"),
    ("trace --dropout -1", "--dropout is -1", "0.1"),
    ("trace --dropout nan", "--dropout is nan", "0.1"),
    ("trace --dropout half", "--dropout is 'half'", "0.1"),
    ("trace --mask-value 1", "--mask-value is 1", "-10000"),
    ("trace --mask-value nan", "--mask-value is nan", "-10000"),
    ("trace --mask-value low", "--mask-value is 'low'", "-10000"),
    # how to run and show it
    ("trace --device tpu", "'tpu'", "cuda"),
    ("trace --device cpu:0:0", "'cpu:0:0'", "meta"),
    ("trace --dtype float31", "'float31'", "float32"),
    ("trace --dtype int64", "'int64'", "bfloat16"),
    ("trace --seed x", "--seed is 'x'", "--seed 1"),
    ("trace --seed -1", "--seed is '-1'", "--seed 1"),
    ("trace --seed 99999999999999999999", "--seed is", "--seed 1"),
    ("trace --format xml", "'xml'", "markdown"),
    ("trace --format sarif", "--format sarif can't show a trace", "markdown"),
    ("trace --format ''", "''", "markdown"),
    ("trace --columns stripe", "'stripe'", "stride"),
    ("trace --columns step,nosuch", "'nosuch'", "signature"),
    ("trace --columns ''", "no column", "signature"),
    ("trace --columns , ", "no column", "signature"),
    ("trace --match nosuch", "'nosuch'", "softmax"),
    ("trace --match ''", "match", "softmax"),
    ("trace --format json --explain", "--explain", "markdown"),
    ("trace --format json --columns step", "--columns", "markdown"),
    ("trace --output folder", "folder", "folder/trace.json"),
    ("trace --output nosuch/trace.json", "nosuch", "mkdir"),
    ("trace --output bad.py/trace.json", "bad.py", ""),
    ("trace --output /proc/nosuch", "/proc/nosuch", "path"),
    (f"trace --output {'n' * 300}", "nnnn", "path"),
    ("trace --expect scores", "--expect 'scores'", "query: B Lq D"),
    ("trace --expect 'scors: B H L L'", "'scors'", "scores?"),
    ("trace --expect 'scores: B H Q L'", "Q isn't a size", "did you mean Lq?"),
    ("trace --expect 'scores: B H L/2'", "'L/2'", "did you mean L//2?"),
    ("trace --expect 'scores: ...'", "'...'", "Dk//2"),
    # commands and flags
    ("nosuch", "'nosuch'", "attnshape --help"),
    ("trace --nosuch", "--nosuch", "--help"),
    ("trace --heads", "--heads", "--help"),
    ("trace --causal=yes", "--causal", "--help"),
    ("trace average additive", "additive", "attnshape trace --help"),
    ("explain nosuch", "'nosuch'", "multi-head"),
    ("explain --format table", "--format table can't show an article", "notebook"),
    ("explain --format xml", "'xml'", "notebook"),
    ("explain --columns step", "--columns", "attnshape explain --help"),
    ("explain --heads 0", "--heads", "4"),
    ("explain --output folder", "folder", "folder/trace.json"),
    ("explain average additive", "additive", "attnshape explain --help"),
    ("show", "FILE", "attnshape show --help"),
    ("show a b", "b", "attnshape show --help"),
    ("run", "no program", "attnshape run train.py"),
    ("run nosuch.py", "'nosuch.py'", "-m MODULE"),
    ("run --nosuch train.py", "--nosuch", "attnshape run --help"),
    ("run -m", "-m", "--help"),
    ("glossary x", "x", "attnshape glossary --help"),
    ("catalog nosuch", "'nosuch'", "multi-head"),
    ("catalog mutli-head", "'mutli-head'", "did you mean multi-head?"),
    # saved traces
    ("show nosuch.json", "nosuch.json: No such file", "--format json"),
    ("show folder", "folder is a folder", "JSON"),
    ("show bad.py/x", "bad.py/x", "--format json"),
    (f"show {'n' * 300}", "nnnn", "--format json"),
    ("show empty.json", "empty.json isn't JSON", "--format json"),
    ("show text.json", "text.json isn't JSON", "--format json"),
    ("show number.json", "number.json", "--format json"),
    ("show list.json", "list.json", "--format json"),
    ("show object.json", "object.json", "--format json"),
    ("show newer.json", "'attnshape/trace/9'", "--format json"),
    ("show foreign.json", "foreign.json", "--format json"),
    ("show deep.json", "deep.json", "--format json"),
    ("show deeper.json", "deeper.json", "--format json"),
    ("show unclosed.json", "unclosed.json", "--format json"),
    ("show huge_number.json", "huge_number.json", "--format json"),
    ("show several.json", "attnshape/traces/1", "--all --format json --output FOLDER/"),
    ("diff several.json several.json", "attnshape/traces/1", "--all --format json --output FOLDER/"),
    ("show binary.json", "binary.json isn't JSON", "--format json"),
    ("show half.json", "half.json isn't JSON", "--format json"),
    ("show partial.json", "partial.json isn't a whole trace", "--format json"),
    ("show reordered.json", "reordered.json isn't a whole trace: step 1", "--format json"),
    ("show dangling.json", "step 999", "--format json"),
    ("show whole.json --columns nosuch", "'nosuch'", "signature"),
    ("show whole.json --match nosuch", "'nosuch'", "softmax"),
    ("show whole.json --format nosuch", "'nosuch'", "markdown"),
    ("show whole.json --output nosuch/file", "nosuch", "mkdir"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    (folder / "binary.json").write_bytes(bytes(range(256)) * 4)
    line = [sys.executable, "-m", "attnshape", "trace", "--format", "json", "--output", "whole.json"]
    subprocess.run(line, cwd=folder, check=True, timeout=60)
    text = (folder / "whole.json").read_text()
    (folder / "half.json").write_text(text[: len(text) // 2])
    whole = json.loads(text)
    (folder / "partial.json").write_text(json.dumps({k: v for k, v in whole.items() if k != "sizes"}))
    (folder / "reordered.json").write_text(json.dumps({**whole, "steps": whole["steps"][::-1]}))
    (folder / "dangling.json").write_text(json.dumps({**whole, "outputs": [{"name": "output", "of": {"step": 999}}]}))
    return folder


def refused(result: Result) -> tuple[str, str]:
    """Return the error and the hint, and assert that there is no other output."""
    assert result.status == 2, (result.out[:300], result.err)
    assert result.out == ""
    assert "Traceback" not in result.err
    lines = re.fullmatch(r"error: (?P<error>[^\n]+)\nhint: (?P<hint>[^\n]+)\n", result.err)
    assert lines, result.err
    for text in lines.groupdict().values():
        assert text.isprintable(), text
        assert text == text.strip()
    return lines["error"], lines["hint"]


@pytest.mark.parametrize(("line", "error", "hint"), TABLE, ids=[line[:90] for line, _, _ in TABLE])
def test_error_and_hint(
    line: str, error: str, hint: str, bad_files: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(bad_files)
    started = time.monotonic()
    message, given_hint = refused(attnshape(line))
    assert time.monotonic() - started < 5
    assert error in message
    assert hint in given_hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:99999999999999"])
def test_cuda_is_not_available(device: str, attnshape: Attnshape):
    error, hint = refused(attnshape("trace", "--device", device))
    assert repr(device) in error
    assert "cpu" in hint


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write anywhere")
def test_folder_without_permission(folder: Path, attnshape: Attnshape):
    (folder / "closed").mkdir(mode=0o500)
    error, _ = refused(attnshape("trace --output closed/file"))
    assert "permission" in error.lower()


def test_annotation_with_an_open_axis(folder: Path, attnshape: Attnshape):
    (folder / "open_axes.py").write_text(
        "from jaxtyping import Float\nfrom torch import Tensor\ndef f(x: Float[Tensor, '*batch D']):\n    return x\n"
    )
    result = attnshape("trace open_axes.py:f")
    assert result.status == 0
    assert 'found: `--input "x: B H L Dk"`' in result.out


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ("[tool", "pyproject.toml can't be read: Expected ']'"),
        ("tool = [1]", "targets isn't a table"),
        ("tool.attnshape = 3", "targets isn't a table"),
        ("tool.attnshape.targets = 3", "targets isn't a table"),
        ("[tool.attnshape.targets]\na = 'multi-head'", "target 'a' is a string, expected a table"),
        ("[tool.attnshape.targets.a]\nnosuch = 1\ntarget = 'average'", "the key nosuch isn't one"),
        ("[tool.attnshape.targets.a]\nlength = 3", "the key target is missing"),
        ("[tool.attnshape.targets.a]\ntarget = 3", "the key target is an integer"),
        ("[tool.attnshape.targets.a]\ntarget = []", "target"),
        ("[tool.attnshape.targets.a]\ntarget = 'a'", "'a'"),
        (
            "[tool.attnshape.targets.a]\ntarget = 'average'\nlength = 0",
            "target 'a': the key length is 0",
        ),
        (
            "[tool.attnshape.targets.a]\ntarget = 'average'\nlength = 2.5",
            "pyproject.toml: target 'a': the key length is a float",
        ),
        ("[tool.attnshape.targets.a]\ntarget = 'average'\nlength = true", "the key length is true or false"),
        ("[tool.attnshape.targets.a]\ntarget = 'average'\nlength = {a = 3}", "the key length is a table"),
        ("\udcff", "pyproject.toml can't be read"),
    ],
)
def test_invalid_pyproject(toml: str, error: str, folder: Path, attnshape: Attnshape):
    (folder / "pyproject.toml").write_bytes(toml.encode(errors="surrogateescape"))
    message, _ = refused(attnshape("trace a"))
    assert error in message


def test_invalid_pyproject_is_not_read_without_a_target_name(folder: Path, attnshape: Attnshape):
    (folder / "pyproject.toml").write_text("[tool")
    assert attnshape("trace").status == 0


HOSTILE_LINES = [
    ["trace", HOSTILE],
    ["trace", f"{HOSTILE}.py:A"],
    ["trace", f"bad.py:{HOSTILE}"],
    ["trace", f"multi-head:{HOSTILE}"],
    ["trace", f"{HOSTILE}:A"],
    ["trace", "bad.py:Attention", "--init", HOSTILE],
    ["trace", "bad.py:Attention", "--init", f"D, {HOSTILE!r}.nosuch"],
    ["trace", "bad.py:attend", "--input", HOSTILE],
    ["trace", "bad.py:attend", "--input", f"{HOSTILE}: B"],
    ["trace", "bad.py:attend", "--input", f"query: {HOSTILE}"],
    ["trace", "bad.py:attend", "--input", f"query: int[{HOSTILE}] B"],
    ["trace", "bad.py:attend", "--with", HOSTILE],
    ["trace", "bad.py:attend", "--with", f"query={HOSTILE}"],
    ["trace", "bad.py:attend", "--with", f"query=1/len({HOSTILE!r})/0"],
    ["trace", "--expect", HOSTILE],
    ["trace", "--expect", f"scores: {HOSTILE}"],
    ["trace", "--dim", HOSTILE],
    ["trace", "--dim", f"T={HOSTILE}"],
    *(["trace", flag, HOSTILE] for flag in ("--batch", "--heads", "--length", "--queries", "--d-model", "--window")),
    *(["trace", flag, HOSTILE] for flag in ("--device", "--dtype", "--seed", "--dropout", "--mask-value")),
    *(["trace", flag, HOSTILE] for flag in ("--format", "--columns", "--match")),
    ["trace", "--output", f"nosuch/{HOSTILE}"],
    ["trace", f"--{HOSTILE}"],
    ["trace", "average", HOSTILE],
    [HOSTILE],
    ["explain", HOSTILE],
    ["explain", "bad.py:attend", "--input", HOSTILE],
    ["explain", "--format", HOSTILE],
    ["show", HOSTILE],
    ["show", "whole.json", "--match", HOSTILE],
    ["catalog", HOSTILE],
    ["glossary", HOSTILE],
]


@pytest.mark.parametrize("words", HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_hostile_names_stay_on_one_line(
    words: list[str], bad_files: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(bad_files)
    refused(attnshape(*words))


def test_hostile_error_messages_stay_on_one_line(folder: Path, attnshape: Attnshape):
    (folder / "hostile.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    error, _ = refused(attnshape("trace hostile.py:f"))
    assert "[bold red]" in error


def test_process_writes_no_traceback(bad_files: Path):
    line = [sys.executable, "-m", "attnshape", "trace", "divides.py:A"]
    result = subprocess.run(line, cwd=bad_files, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\nhint: [^\n]+\n", result.stderr)
