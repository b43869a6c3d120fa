"""A mistake in a mechanism's file is found by `check`, at its line."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from attnshape.targets.builtin.registry import CATALOG, MECHANISMS
from tests.sampling import sampled


@dataclass(frozen=True)
class Mutant:
    """A line of a mechanism, what takes its place, and the code of the finding."""

    name: str
    case: str
    code: str
    right: str
    wrong: str
    found: str = ""
    """A part of the line where it is found, if that is another line."""

    def __str__(self) -> str:
        return f"{self.name}-{self.code}"


SELF = "self_attention"
MUTANTS = (
    Mutant(
        "grouped-query",
        SELF,
        "AS601",
        "view(B, L, Hkv, G, Dk).permute(0, 2, 3, 1, 4)",
        "view(B, L, G, Hkv, Dk).permute(0, 3, 2, 1, 4)",
    ),
    Mutant("multi-query", SELF, "AS805", "self.Wv(input).unsqueeze(1)", "self.Wk(input).unsqueeze(1)", "value: Float"),
    Mutant(
        "rotary-interleaved",
        SELF,
        "AS704",
        "even * angle.cos() - odd",
        "even * angle.cos() + odd",
        "rotate_pairs(query)",
    ),
    Mutant("rotary-halves", SELF, "AS703", "rotate_halves(key).transpose", "key.transpose"),
    Mutant(
        "partial-rotary",
        SELF,
        "AS708",
        "torch.outer(position, frequency)",
        "torch.outer(position * 0, frequency)",
        "scores: Float",
    ),
    Mutant("alibi", SELF, "AS706", "= -slopes * distance", "= slopes * distance"),
    Mutant(
        "relative-bias",
        SELF,
        "AS304",
        ' + bias\n        weights: Float[Tensor, "B H L L"] = scores.softmax(dim=-1)',
        '\n        weights: Float[Tensor, "B H L L"] = scores.softmax(dim=-1) + bias',
        "weights: Float",
    ),
    Mutant("shifted-window", "shifted", "AS106", ".roll((self.shift, self.shift)", ".roll((-self.shift, self.shift)"),
    Mutant(
        "kv-cache", "decode", "AS107", "torch.cat((past_key, new_key), dim=2)", "torch.cat((new_key, past_key), dim=2)"
    ),
    Mutant(
        "kv-cache",
        "decode",
        "AS503",
        "causal_mask(Lq, Lp + Lq)",
        "causal_mask(Lp + Lq, Lp + Lq)[:Lq]",
        "scores.masked_fill(~mask",
    ),
    Mutant("sliding-window", SELF, "AS505", "triu(1 - W)", "triu(-W)", "scores.masked_fill"),
    Mutant(
        "packed",
        SELF,
        "AS501",
        "position.unsqueeze(1) >= position\n",
        "position.unsqueeze(1) <= position\n",
        "earlier: Bool",
    ),
    Mutant("sparse", SELF, "AS501", "scatter(-1, best, True) & mask", "scatter(-1, best, True)"),
    Mutant("latent", SELF, "AS703", "rotate_part(self.W_KR(input))", "self.W_KR(input)", "rotated: Float"),
    Mutant("latent-queries", "cross_attention", "AS401", "~mask[:, None, None]", "mask[:, None, None]"),
    Mutant("linear", "causal", "AS501", "value.unsqueeze(-2)).cumsum", "value.roll(-1, 2).unsqueeze(-2)).cumsum"),
    Mutant("gated-delta", "recurrent", "AS501", "value.unbind(2)", "value.roll(-1, 2).unbind(2)"),
    Mutant("differential", SELF, "AS207", "math.sqrt(Dk // 2)", "math.sqrt(Dk)"),
    Mutant("sinks", SELF, "AS808", "self.sinks.view", "self.sinks.detach().view"),
    Mutant("gated-output", SELF, "AS501", "self.Wg(input)", "self.Wg(input.roll(-1, 1))"),
    Mutant(
        "qk-norm",
        SELF,
        "AS104",
        "self.key_norm(self.Wk(input).view(B, L, H, Dk))",
        "self.key_norm(nn.functional.normalize(self.Wk(input).view(B, L, H, Dk), dim=1))",
    ),
    Mutant(
        "softcap",
        SELF,
        "AS405",
        'torch.tanh(scores / CAP)\n        logits: Float[Tensor, "B H L L"] = capped.masked_fill(~mask, -math.inf)',
        'torch.tanh(scores.masked_fill(~mask, -math.inf) / CAP)\n        logits: Float[Tensor, "B H L L"] = capped',
        "torch.tanh",
    ),
    Mutant("multi-head-list", SELF, "AS201", "math.sqrt(query.shape[-1])", "math.sqrt(input.shape[-1])"),
)


def test_every_new_mechanism_has_a_mutant() -> None:
    first = list(CATALOG).index("grouped-query")
    assert {mutant.name for mutant in MUTANTS} == set(list(CATALOG)[first:])


@pytest.mark.parametrize("mutant", sampled(MUTANTS, ["grouped-query-AS601", "kv-cache-AS107", "linear-AS501"]))
def test_mutant_is_found_at_its_line(mutant: Mutant, tmp_path: Path) -> None:
    module = CATALOG[mutant.name]
    code = (MECHANISMS / f"{module}.py").read_text()
    assert code.count(mutant.right) == 1
    path = tmp_path / f"{module}.py"
    path.write_text(code.replace(mutant.right, mutant.wrong))
    spec = TargetSpec(f"{path}:{mutant.case}")
    report = check_request(spec, RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext)
    findings = [finding for finding in report.findings if finding.level == "error" or finding.code == mutant.code]
    assert [finding.code for finding in findings] == [mutant.code], report.findings
    source = findings[0].source
    assert source is not None
    line = path.read_text().splitlines()[source.line - 1]
    assert (mutant.found or mutant.wrong) in line
