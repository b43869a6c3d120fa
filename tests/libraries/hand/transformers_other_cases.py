"""transformers' encoder-decoders, vision, and compressed keys and values, by hand."""

from tests.libraries.hand_worked import HandWorked

PLAIN = ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 15})
CROSS = ({"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32}, {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14})
LATENT = (
    {"B": 2, "H": 4, "L": 10, "D": 32, "Dk": 6, "Dv": 5},
    {"B": 1, "H": 3, "L": 7, "D": 15, "Dk": 4, "Dv": 9},
)

CASES = {
    # the bias, (1, H, L, L), is returned between output and weights
    "t5_self": HandWorked(
        (PLAIN[0] | {"Dk": 6}, PLAIN[1] | {"Dk": 4}), ("B L D", "1 H L L", "B H L L"), scores=("B H L L",)
    ),
    "t5_cross": HandWorked(
        (CROSS[0] | {"Dk": 6}, CROSS[1] | {"Dk": 5}), ("B Lq D", "1 H Lq Lk", "B H Lq Lk"), scores=("B H Lq Lk",)
    ),
    "whisper_cross": HandWorked(CROSS, ("B Lq D", "B H Lq Lk"), scores=("B H Lq Lk",)),
    "bart_cross": HandWorked(CROSS, ("B Lq D",), avoided=("B H Lq Lk",)),
    "bart_decoding": HandWorked(
        ({"B": 2, "H": 4, "L": 5, "Lp": 6, "D": 32}, {"B": 3, "H": 5, "L": 1, "Lp": 9, "D": 35}),
        ("B L D", "B H L Lp+L"),
        scores=("B H L Lp+L",),
    ),
    "vit": HandWorked(PLAIN, ("B L D", "B H L L"), scores=("B H L L",)),
    "clip": HandWorked(PLAIN, ("B L D",), avoided=("B H L L",)),
    # windows are folded into the batch, and a window's W*W tokens see each other
    "swin": HandWorked(
        (PLAIN[0] | {"W": 3}, {"B": 1, "H": 3, "L": 2, "D": 15, "W": 4}),
        ("B*L W*W D", "B*L H W*W W*W"),
        scores=("B*L H W*W W*W",),
    ),
    "swin_layer": HandWorked(
        (
            {"B": 2, "H": 4, "Lq": 5, "Lk": 6, "D": 32, "W": 3},
            {"B": 1, "H": 3, "Lq": 5, "Lk": 2, "D": 21, "W": 4},
        ),
        ("B Lq*W*Lk*W D", "B*Lq*Lk H W*W W*W"),
        scores=("B*Lq*Lk H W*W W*W",),
    ),
    "deepseek_v3": HandWorked(LATENT, ("B L D", "B H L L"), scores=("B H L L",)),
    "deepseek_v3_decoding": HandWorked(
        (LATENT[0] | {"L": 3, "Lp": 10}, LATENT[1] | {"B": 5, "L": 1, "Lp": 7}),
        ("B L D", "B H L Lp+L"),
        scores=("B H L Lp+L",),
    ),
}
