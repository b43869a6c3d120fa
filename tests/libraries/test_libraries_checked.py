"""Attention of libraries is free of findings, but for those that are real and explained in docs/checking.md."""

import contextlib

import pytest

from attnshape.claims import Claims
from attnshape.examine import check_request
from attnshape.settings import Settings
from attnshape.target.request import Request
from tests.libraries.tracing_cases import HAND_WORKED, target_of
from tests.thorough import EVERY

REAL = {
    # the first call takes the clusters' means from the whole batch
    "efficient_cases:routing": ["AS101"],
    # key and value heads are tiled: query head h uses key head h % Hkv
    "x_transformers_cases:grouped": ["AS601"],
    # head_to_batch_dim's docstring tells of four axes, and it returns three
    "diffusers_cases:cross": ["AS001"],
    "diffusers_cases:added_keys": ["AS001"],
    # with `bias_k` there is one key more than the docstring of the weights says
    "torch_cases:mha_function": ["AS003"],
    # a comment says that query, key and value all are of length `seq_len`
    "labml_cases:cross": ["AS003", "AS003"],
    "labml_cases:relative": ["AS003", "AS003"],
    # `3 x hidden_size`, and in a docstring `num_heads * 3 * head_dim`, where all heads share one key and value
    "transformers_text_cases:falcon": ["AS003", "AS003"],
    "transformers_text_cases:falcon_grouped": ["AS003", "AS003"],
    # the last axis is called `window_overlap*window_overlap+window_overlap`, and has three windows' keys
    "transformers_text_cases:longformer": ["AS003", "AS003"],
    "transformers_text_cases:longformer_global": ["AS003", "AS003"],
}
SLOW = {
    *(f"efficient_cases:{name}" for name in ("reformer", "axial", "nystrom", "local_heads", "colt5")),
    *(f"transformers_other_cases:{name}" for name in ("swin", "swin_layer", "deepseek_v3", "deepseek_v3_decoding")),
    *(
        f"transformers_text_cases:{name}"
        for name in ("longformer", "llama_fused", "mistral", "gemma2", "falcon_grouped")
    ),
    *("labml_cases:retro", "torch_cases:transformer", "vit_pytorch_cases:cvt", "vit_pytorch_cases:levit"),
    *("transformers_text_cases:longformer_global", "transformers_text_cases:falcon", "x_transformers_cases:grouped"),
}
"""Those that take seconds each, most of these for what tracing them takes too; checked with ATTNSHAPE_EVERY_SIZE."""
QUICK = [case for case in HAND_WORKED if case not in SLOW]
CASES = list(HAND_WORKED) if EVERY else [case for place, case in enumerate(QUICK) if place % 2 or case in REAL]


@pytest.mark.parametrize("case", CASES)
def test_a_library_module_has_no_finding_that_is_not_real(case: str) -> None:
    request = Request(target_of(case), given=HAND_WORKED[case].sizes[0])
    report = check_request(request, Settings(command=case), Claims(), 60.0, contextlib.nullcontext)
    assert [finding.code for finding in report.findings] == REAL.get(case, []), report.findings
    assert not [one for one in report.unexamined if one.why.startswith("the probe failed")]


def test_there_are_at_least_thirty() -> None:
    assert len(CASES) >= 30
