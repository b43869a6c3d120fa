"""vit-pytorch, by hand. A convolution of stride 2 leaves (n + 1) // 2 of n."""

from tests.libraries.hand_worked import HandWorked

WIDE = ({"B": 2, "H": 4, "L": 10, "D": 32, "Dk": 6}, {"B": 1, "H": 3, "L": 7, "D": 15, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 10, "D": 32, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 1, "Lk": 13, "D": 14, "Dk": 8},
)
CASES = {
    "vit": HandWorked(WIDE, ("B L D",), scores=("B H L L",)),
    "deepvit": HandWorked(WIDE, ("B L D",), scores=("B H L L",)),
    # the class tokens' own keys stand before the patches'
    "cait": HandWorked(CROSS, ("B Lq D",), scores=("B H Lq Lq+Lk",)),
    "cvt": HandWorked(
        (CROSS[0], CROSS[1] | {"Lq": 7}),
        ("B D Lq Lk",),
        scores=("B*H Lq*Lk ((Lq+1)//2)*((Lk+1)//2)",),
    ),
    "levit": HandWorked(
        (
            {"B": 2, "H": 4, "D": 9, "Dk": 5, "Dv": 8, "W": 6},
            {"B": 1, "H": 3, "D": 10, "Dk": 6, "Dv": 4, "W": 9},
        ),
        ("B 2*D (W+1)//2 (W+1)//2",),
        scores=("B H ((W+1)//2)*((W+1)//2) W*W",),
    ),
}
