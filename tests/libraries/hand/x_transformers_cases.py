"""x-transformers, by hand: einsum of (B, H, Lq, Dk) and (B, H, Lk, Dk), or (B, Lk, Dk) where all heads share a key."""

from tests.libraries.hand_worked import HandWorked

WIDE = ({"B": 2, "H": 4, "L": 10, "D": 32, "Dk": 6}, {"B": 1, "H": 3, "L": 7, "D": 17, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14, "Dk": 5},
)

CASES = {
    "grouped": HandWorked(
        (
            {"B": 2, "H": 12, "Hkv": 4, "L": 10, "D": 20, "Dk": 8},
            {"B": 1, "H": 10, "Hkv": 2, "L": 7, "D": 33, "Dk": 9},
        ),
        ("B L D",),
        scores=("B H L L",),
    ),
    "one_key_head": HandWorked(WIDE, ("B L D",), scores=("B H L L",)),
    "cross_padded": HandWorked((CROSS[0] | {"Dv": 9}, CROSS[1] | {"Dv": 7}), ("B Lq D",), scores=("B H Lq Lk",)),
    "memories": HandWorked((WIDE[0] | {"W": 3}, WIDE[1] | {"W": 5}), ("B L D",), scores=("B H L W+L",)),
    "talking_heads": HandWorked(WIDE, ("B L D",), scores=("B H L L",)),
    "flash": HandWorked(CROSS, ("B Lq D",), avoided=("B H Lq Lk",)),
}
