"""diffusers, by hand."""

from tests.libraries.hand_worked import HandWorked

CROSS = (
    {"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32, "Dk": 6, "Dv": 7},
    {"B": 1, "H": 3, "Lq": 4, "Lk": 11, "D": 15, "Dk": 8, "Dv": 9},
)
IMAGE = tuple({letter: size for letter, size in sizes.items() if letter != "Dv"} for sizes in CROSS)

CASES = {
    "cross": HandWorked(CROSS, ("B Lq D",), scores=("B*H Lq Lk",)),
    "image": HandWorked(IMAGE, ("B D Lq Lk",), avoided=("B H Lq*Lk Lq*Lk",)),
    # the text's keys stand before the image's own
    "added_keys": HandWorked(CROSS, ("B D Lq",), scores=("B*H Lq Lk+Lq",)),
    "block": HandWorked(
        (
            {"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32, "Dv": 7},
            {"B": 1, "H": 3, "Lq": 4, "Lk": 11, "D": 15, "Dv": 9},
        ),
        ("B Lq D",),
        avoided=("B H Lq Lq", "B H Lq Lk"),
    ),
}
