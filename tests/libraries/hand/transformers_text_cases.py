"""transformers' encoders and decoders of text, by hand.

The common eager attention takes (B, H, Lq, Dk) and (B, H, Lk, Dk), key heads repeated where there are fewer, and makes
(B, H, Lq, Lk) scores by matmul; modules return the output and the weights.
"""

from tests.libraries.hand_worked import HandWorked

PLAIN = ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 15})
CROSS = ({"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32}, {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14})
GROUPED = ({"B": 2, "H": 12, "Hkv": 4, "L": 10, "D": 96}, {"B": 1, "H": 10, "Hkv": 2, "L": 7, "D": 140})
CACHED = tuple(sizes | {"Lp": past, "L": length} for sizes, past, length in zip(GROUPED, (6, 9), (5, 1), strict=True))
WIDE = (GROUPED[0] | {"D": 20, "Dk": 8}, GROUPED[1] | {"D": 33, "Dk": 6})
BAND = ({"B": 2, "H": 4, "L": 36, "D": 32, "W": 3}, {"B": 1, "H": 3, "L": 20, "D": 21, "W": 5})

CASES = {
    "bert": HandWorked(PLAIN, ("B L D", "B H L L"), scores=("B H L L",)),
    "distilbert": HandWorked(PLAIN, ("B L D",), avoided=("B H L L",)),
    "gpt2": HandWorked(PLAIN, ("B L D", "B H L L"), scores=("B H L L",)),
    # heads folded into the batch for baddbmm, unfolded before the softmax
    "gpt2_upcast": HandWorked(PLAIN, ("B L D", "B H L L"), scores=("B*H L L",)),
    "gpt2_cross": HandWorked(CROSS, ("B Lq D", "B H Lq Lk"), scores=("B H Lq Lk",)),
    "llama": HandWorked(CACHED, ("B L D", "B H L Lp+L"), scores=("B H L Lp+L",)),
    "llama_fused": HandWorked(GROUPED, ("B L D",), avoided=("B H L L",)),
    # the window is in the mask alone: all L keys are compared
    "mistral": HandWorked((GROUPED[0] | {"W": 6}, GROUPED[1] | {"W": 4}), ("B L D", "B H L L"), scores=("B H L L",)),
    "qwen3": HandWorked(WIDE, ("B L D", "B H L L"), scores=("B H L L",)),
    "gemma2": HandWorked((WIDE[0] | {"D": 36}, WIDE[1] | {"D": 30}), ("B L D", "B H L L"), scores=("B H L L",)),
    "gpt_neox": HandWorked(
        (
            {"B": 2, "H": 4, "L": 5, "Lp": 6, "D": 32},
            {"B": 3, "H": 5, "L": 1, "Lp": 7, "D": 60},
        ),
        ("B L D", "B H L Lp+L"),
        scores=("B H L Lp+L",),
    ),
    # one key of (B, 1, L, Dk) for all heads, by broadcasting
    "falcon": HandWorked(
        ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 18}),
        ("B L D", "B H L L"),
        scores=("B H L L",),
    ),
    "falcon_grouped": HandWorked(GROUPED, ("B L D", "B H L L"), scores=("B H L L",)),
    "bloom": HandWorked(PLAIN, ("B L D", "B H L L"), scores=("B*H L L",)),
    # content to content; what positions add has 2*min(L, W) columns before it is gathered to L
    "deberta": HandWorked(
        ({"B": 2, "H": 4, "L": 10, "D": 32, "W": 6}, {"B": 1, "H": 3, "L": 7, "D": 15, "W": 11}),
        ("B L D",),
        scores=("B H L L",),
    ),
    # the band: W keys before, the query's own, W behind; of query and key once, of the mask once
    "longformer": HandWorked(BAND, ("B L D",), scores=("B L H 2*W+1",), named="attn_scores"),
    # then with the global token's score before the band
    "longformer_global": HandWorked(BAND, ("B L D",), scores=("B L H 2*W+1", "B L H 2*W+2"), named="attn_scores"),
}
