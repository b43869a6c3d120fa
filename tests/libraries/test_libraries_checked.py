"""Attention of libraries is free of findings, but for those that are real and explained in docs/checking.md."""

import contextlib

import pytest

from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from tests.libraries.tracing_cases import HAND_WORKED, QUICK, target_of
from tests.sampling import sampled

pytestmark = pytest.mark.libraries
REAL = {
    # the first call takes the clusters' means from the whole batch
    "efficient_cases:routing": ["AS101"],
    # the pseudo-inverse starts from the largest sums of rows and columns of the whole batch
    "efficient_cases:nystrom": ["AS101"],
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


@pytest.mark.parametrize("case", sampled(HAND_WORKED, QUICK))
def test_a_library_module_has_no_finding_that_is_not_real(case: str) -> None:
    request = TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[0])
    report = check_request(request, RunOptions(command=case), Claims(), 60.0, contextlib.nullcontext)
    assert [finding.code for finding in report.findings] == REAL.get(case, []), report.findings
    assert not [one for one in report.not_checked if one.why.startswith("the check failed")]
