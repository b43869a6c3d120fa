"""`--cost` on the command line: what counts, what shows costs, and what they don't change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.running import Attnshape

CAUSAL = "trace multi-head --causal --cost"


def test_costs_are_in_json_with_exact_numbers_and_formulas(attnshape: Attnshape) -> None:
    trace = attnshape(f"{CAUSAL} --format json").trace
    assert trace["grad"] is True
    total = trace["cost"]
    assert total["parameters"] == {"value": 4 * 512 * 512 + 4 * 512, "expression": "4*D*D+4*D"}
    assert total["attention"] == {"value": 4 * 2 * 10 * 10 * 512, "expression": "4*B*L*L*D"}
    assert total["needless"] == 0.45
    scores = next(step for step in trace["steps"] if step["role"] == "scores")
    assert scores["cost"]["flops"] == {"value": 2 * 2 * 10 * 10 * 512, "expression": "2*B*H*L*L*Dk"}
    assert scores["cost"]["temporary"] == {"value": 81920, "expression": "8*B*H*L*Dk"}


def test_saved_costs_are_shown_again_without_a_flag(attnshape: Attnshape, folder: Path) -> None:
    shown = attnshape(f"{CAUSAL} --format table").out.splitlines()[1:]
    assert attnshape(f"{CAUSAL} --format json --output costs.json").status == 0
    again = attnshape("show costs.json --format table")
    assert (again.status, again.err) == (0, "")
    assert again.out.splitlines()[1:] == shown
    assert "flops" in shown[3]
    assert "of which a mask makes 45% needless" in " ".join(again.out.split())


def test_columns_of_costs_count_them(attnshape: Attnshape) -> None:
    out = attnshape("trace --columns step,flops --format markdown").out
    assert "10.5 M = 2*B*L*D*D" in out
    assert "saved for the backward pass" in out


def test_trace_without_costs_has_none(attnshape: Attnshape, folder: Path) -> None:
    (folder / "plain.json").write_text(attnshape("trace --format json").out)
    assert "cost" not in json.loads((folder / "plain.json").read_text())
    shown = attnshape("show plain.json --columns step,flops --format markdown")
    assert shown.status == 0
    assert "FLOPs" not in shown.out


def test_html_has_costs(attnshape: Attnshape) -> None:
    out = attnshape("trace scaled-dot-product --cost --format html").out
    assert "<code>41 k = 2*B*Lq*Lk*Dk</code>" in out


def test_costs_are_no_difference(attnshape: Attnshape, folder: Path) -> None:
    for name, flags in (("plain", "--grad"), ("costs", "--cost")):
        assert attnshape(f"trace {flags} --format json --output {name}.json").status == 0
    result = attnshape("diff plain.json costs.json")
    assert (result.status, result.err) == (0, "")


def test_meta_has_the_formulas_of_small_runs(attnshape: Attnshape) -> None:
    trace = attnshape("trace multi-head --length 100000 --device meta --cost --format json").trace
    assert trace["cost"]["attention"] == {"value": 4 * 2 * 10**10 * 512, "expression": "4*B*L*L*D"}


def test_fused_attention_on_meta_has_formulas_and_a_note(attnshape: Attnshape, folder: Path) -> None:
    (folder / "fused.py").write_text(
        "import torch\n"
        "def attend(q):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)\n"
    )
    trace = attnshape("trace fused.py:attend --input 'q: B H L Dk' --device meta --cost --format json").trace
    cost = trace["steps"][0]["cost"]
    assert cost["flops"]["expression"] == "4*B*H*L*L*Dk+6*B*H*L*L"
    assert all("expression" in cost[kind] for kind in ("moved", "saved"))
    assert 0.45 < trace["cost"]["needless"] < 0.5  # in the largest small run
    assert any("costs are those of the CPU's kernels" in note for note in trace["notes"])


def test_peak_is_that_of_a_run_that_is_not_counted(attnshape: Attnshape) -> None:
    counted, plain = (attnshape(f"trace {flag} --format json").trace["peak"] for flag in ("--cost", "--grad"))
    assert counted == plain


def test_code_that_fails_with_gradients_is_counted_without(attnshape: Attnshape, folder: Path) -> None:
    (folder / "flexible.py").write_text(
        "from torch.nn.attention.flex_attention import flex_attention\n"
        "def attend(q, k, v):\n"
        "    return flex_attention(q, k, v) + 1\n"
    )
    heads = " ".join(f"--input '{name}: B H L Dk'" for name in "qkv")
    trace = attnshape(f"trace flexible.py:attend {heads} --cost --format json").trace
    assert trace["complete"] is True
    assert any(note.startswith("with gradients the code fails") for note in trace["notes"])
    flexible, added = trace["steps"]
    assert flexible["opaque"]
    assert flexible["cost"]["flops"]["value"] > 4 * 2 * 8 * 10 * 10 * 64
    assert "saved" not in flexible["cost"]
    assert added["cost"]["flops"]["expression"] == "B*H*L*Dk"


def test_total_of_iterations_that_differ_is_their_sum(attnshape: Attnshape, folder: Path) -> None:
    (folder / "growing.py").write_text(
        "import torch\n"
        "def attend(x):\n"
        "    rows = []\n"
        "    for i in range(x.shape[1]):\n"
        "        seen = x[:, : i + 1]\n"
        "        weights = (x[:, i : i + 1] @ seen.mT).softmax(-1)\n"
        "        rows.append(weights @ seen)\n"
        "    return torch.cat(rows, 1)\n"
    )
    total = attnshape("trace growing.py:attend --input 'x: B L D' --cost --format json").trace["cost"]
    assert total["products"] == {"value": 2 * 2 * 2 * 512 * (10 * 11 // 2)}
    assert total["attention"] is None


def test_unknown_operators_are_named(attnshape: Attnshape, folder: Path) -> None:
    (folder / "odd.py").write_text("import torch\ndef odd(x):\n    return torch.linalg.inv(x.mT @ x)\n")
    result = attnshape("trace odd.py:odd --input 'x: B L D' --batch 2 --length 4 --d-model 3 --cost --format markdown")
    assert "FLOPs unknown, because of aten.linalg_inv_ex.default" in result.out


def test_cached_tokens_are_found_in_results(attnshape: Attnshape) -> None:
    flags = "--init 'D, H' --input 'x: B L D' --input 'past_key: B H Lp Dk' --input 'past_value: B H Lp Dk'"
    trace = attnshape(f"trace examples/kv_cache.py:CachedAttention {flags} --cost --format json").trace
    assert trace["cost"]["cache"] == {"value": 8 * 2 * 8 * 64, "expression": "8*B*H*Dk"}


def test_cache_that_is_written_in_place_is_found(attnshape: Attnshape, folder: Path) -> None:
    (folder / "static.py").write_text(
        "import torch\n"
        "class Cache(torch.nn.Module):\n"
        "    def __init__(self, B, H, W, Dk):\n"
        "        super().__init__()\n"
        "        self.register_buffer('keys', torch.zeros(B, H, W, Dk))\n"
        "    def forward(self, k):\n"
        "        self.keys[:, :, : k.shape[2]] = k\n"
        "        return self.keys * 2\n"
    )
    trace = attnshape(
        "trace static.py:Cache --init 'B, H, W, Dk' --input 'k: B H L Dk' --window 32 --cost --format json"
    )
    assert trace.trace["cost"]["cache"]["expression"] == "4*B*H*Dk"


def test_default_trace_imports_nothing_that_counts() -> None:
    script = (
        "import sys\n"
        "from attnshape.cli.app import run\n"
        "status = run(['trace', '--format', 'json'])\n"
        "loaded = [name for name in sys.modules if name.startswith('attnshape.cost')]\n"
        "assert not loaded and 'torch.utils.flop_counter' not in sys.modules, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
