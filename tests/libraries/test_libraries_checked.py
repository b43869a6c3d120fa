"""`check` has no findings in libraries' attention modules, except for the real ones in REAL."""

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
    # zeros fill up the last window, and no mask hides them
    "efficient_cases:local_heads": ["AS409"],
    # the pseudo-inverse starts from the largest sums of rows and columns of the whole batch
    "efficient_cases:nystrom": ["AS101"],
    # key and value heads are tiled: query head h uses key head h % Hkv
    "x_transformers_cases:grouped": ["AS601"],
    # head_to_batch_dim's docstring documents four axes, but it returns three
    "diffusers_cases:cross": ["AS001"],
    "diffusers_cases:added_keys": ["AS001"],
    # a comment says that query, key and value all have the length `seq_len`
    "labml_cases:cross": ["AS003", "AS003"],
    "labml_cases:relative": ["AS003", "AS003"],
    # `3 x hidden_size`, and in a docstring `num_heads * 3 * head_dim`, although all heads share one key and value
    "transformers_text_cases:falcon": ["AS003", "AS003"],
    "transformers_text_cases:falcon_grouped": ["AS003", "AS003"],
    # the last axis is documented as `window_overlap*window_overlap+window_overlap`, but has the keys of three windows
    # and without global attention nothing reads its projections
    "transformers_text_cases:longformer": ["AS003", "AS003", "AS807"],
    "transformers_text_cases:longformer_global": ["AS003", "AS003"],
}

CONVENTIONS = {"AS204", "AS207", "AS408", "AS709", "AS805"}
"""What the notices of these codes tell is true of these modules: no claim is made about them."""


@pytest.mark.parametrize("case", sampled(HAND_WORKED, QUICK))
def test_library_module_has_no_false_positives(case: str) -> None:
    request = TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[0])
    report = check_request(request, RunOptions(command=case), Claims(), 300.0, contextlib.nullcontext)
    codes = [
        finding.code for finding in report.findings if finding.code not in CONVENTIONS or finding.level != "notice"
    ]
    assert codes == REAL.get(case, []), report.findings
    assert not [entry for entry in report.not_checked if entry.why.startswith("the check failed")]
