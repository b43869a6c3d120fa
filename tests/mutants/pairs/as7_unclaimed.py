"""Mutants of rotations and ALiBi again, without the claim: attnshape finds them all the same."""

import functools

from tests.mutants.pairs import as701, as703, as704, as706

CLAIMS = ("rope=half", "rope=interleaved", "alibi")
FOUND = {
    "over_heads": (as701, "AS701", "tables_over_heads"),
    "before_transpose": (as701, "AS701", "before_the_transpose"),
    "along_the_batch": (as701, "AS701", "positions_of_batch"),
    "complex_along_heads": (as701, "AS701", "complex_over_heads"),
    "new_keys": (as703, "AS703", "new_keys_from_zero"),
    "late_queries": (as703, "AS703", "queries_from_zero"),
    "one_later": (as703, "AS703", "off_by_one"),
    "shifted_function": (as703, "AS703", "functional_shift"),
    "mixed_tables": (as704, "AS704", "interleaved_tables"),
    "two_layouts": (as704, "AS704", "query_half_key_pairs"),
    "rising": (as706, "AS706", "alibi_sign"),
    "rising_in_sdpa": (as706, "AS706", "alibi_in_sdpa"),
}
"""The mutants by their names here."""


def without_claims(case):
    @functools.wraps(case)
    def unclaimed(**sizes):
        called, args, kwargs, claims = case(**sizes)
        return called, args, kwargs, [claim for claim in claims if claim not in CLAIMS]

    return unclaimed


PAIRS = []
for name, (module, code, claimed) in FOUND.items():
    PAIRS.append((code, name, *next(pair[2:] for pair in module.PAIRS if pair[1] == claimed)))
    globals()[f"wrong_{name}"] = without_claims(getattr(module, f"wrong_{claimed}"))
    globals()[f"right_{name}"] = without_claims(getattr(module, f"right_{claimed}"))
    globals()[f"reference_{name}"] = getattr(module, f"reference_{claimed}")
