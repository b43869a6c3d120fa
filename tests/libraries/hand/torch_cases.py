"""torch's own attention, by hand.

`F.multi_head_attention_forward` folds heads into the batch: with weights asked for it makes scores by bmm (baddbmm
where there is a mask) of (B*H, Lq, Dk) and (B*H, Dk, Lk); without, it calls fused attention on (B, H, Lq, Dk).
"""

from tests.libraries.hand_worked import HandWorked

SELF = ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 15})
CROSS = ({"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32}, {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14})

CASES = {
    "mha_self": HandWorked(SELF, ("B L D", "B L L"), scores=("B*H L L",)),
    "mha_cross": HandWorked(CROSS, ("Lq B D",), avoided=("B H Lq Lk",)),
    "mha_padded": HandWorked(
        (
            {"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32, "Dk": 24, "Dv": 20},
            {"B": 5, "H": 3, "Lq": 7, "Lk": 4, "D": 15, "Dk": 11, "Dv": 6},
        ),
        ("B Lq D", "B H Lq Lk"),
        scores=("B*H Lq Lk",),
    ),
    # bias_k is one more key behind those of the memory
    "mha_function": HandWorked(CROSS, ("Lq B D", "B Lq Lk+1"), scores=("B*H Lq Lk+1",)),
    "encoder_layer": HandWorked(SELF, ("B L D",), avoided=("B H L L",)),
    "decoder_layer": HandWorked(CROSS, ("B Lq D",), avoided=("B H Lq Lq", "B H Lq Lk")),
    "transformer": HandWorked(CROSS, ("B Lq D",), avoided=("B H Lk Lk", "B H Lq Lq", "B H Lq Lk")),
    "fused": HandWorked(
        (
            {"B": 2, "H": 12, "Hkv": 4, "Lq": 10, "Lk": 13, "Dk": 8, "Dv": 6},
            {"B": 4, "H": 10, "Hkv": 2, "Lq": 1, "Lk": 11, "Dk": 7, "Dv": 9},
        ),
        ("B H Lq Dv",),
        avoided=("B H Lq Lk",),
    ),
}
