"""Attention that doesn't compare every query with every key, by hand."""

from tests.libraries.hand_worked import HandWorked

SELF = ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 15})
WIDE = ({"B": 2, "H": 4, "L": 10, "D": 32, "Dk": 6}, {"B": 1, "H": 3, "L": 7, "D": 15, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14, "Dk": 5},
)
NARROW = ({"W": 3}, {"W": 5})

WINDOWS = "-(-L//W)"
PADDED = "-(-L//W)*W"

CASES = {
    # "bhnd,bhkd->bhnk" with k = W
    "linformer": HandWorked((SELF[0] | NARROW[0], SELF[1] | {"W": 4}), ("B L D",), scores=("B H L W",)),
    "linformer_shared": HandWorked((CROSS[0] | NARROW[0], CROSS[1] | {"W": 4}), ("B Lq D",), scores=("B H Lq W",)),
    # a window of W queries sees itself and the one before
    "local": HandWorked(
        ({"B": 2, "H": 4, "L": 10, "Dk": 6, "W": 3}, {"B": 1, "H": 3, "L": 7, "Dk": 9, "W": 4}),
        ("B H L Dk",),
        scores=(f"B*H {WINDOWS} W 2*W",),
    ),
    # and here the one behind too
    "local_heads": HandWorked((WIDE[0] | NARROW[0], WIDE[1] | {"W": 4}), ("B L D",), scores=(f"B*H {WINDOWS} W 3*W",)),
    # first down the columns, one sequence for each of B*Lk columns, then along the rows
    "axial": HandWorked(
        ({"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32}, {"B": 1, "H": 3, "Lq": 4, "Lk": 7, "D": 15}),
        ("B D Lq Lk",),
        scores=("B*Lk*H Lq Lq", "B*Lq*H Lk Lk"),
    ),
    "axial_cross": HandWorked(CROSS, ("B Lq D",), scores=("B*H Lq Lk",)),
    "perceiver": HandWorked((CROSS[0] | {"Dv": 9}, CROSS[1] | {"Dv": 7}), ("B Lq D",), scores=("B*H Lq Lk",)),
    # queries with landmarks, landmarks with landmarks, landmarks with keys; the middle one is inverted
    "nystrom": HandWorked(
        (WIDE[0] | NARROW[0], WIDE[1] | {"W": 5}), ("B L D",), scores=(f"B H {PADDED} W",), named="sim1"
    ),
    "performer": HandWorked(
        (WIDE[0] | {"W": 7}, WIDE[1] | {"W": 5}),
        ("B L D",),
        without="keys and values are contracted over tokens first, to (B, H, W, Dk)",
    ),
    "performer_cross": HandWorked(
        (CROSS[0] | {"W": 7}, CROSS[1] | {"W": 4}),
        ("B Lq D",),
        without="keys and values are contracted over tokens first, to (B, H, W, Dk)",
    ),
    "linear": HandWorked(
        WIDE, ("B L D",), without="keys and values are contracted over tokens first, to (B, H, Dk, Dk)"
    ),
    "memory_efficient": HandWorked(CROSS, ("B Lq D",), scores=("B H Lq Lk",)),
    # one iteration for each pair of chunks, named `weight` in each
    "chunked": HandWorked(
        (WIDE[0] | {"L": 9, "W": 3}, WIDE[1] | {"L": 10, "W": 5}),
        ("B L D",),
        scores=("B H W W",),
        named="weight",
    ),
    # two rounds of L//W chunks of W, each of which sees itself and the one before
    "reformer": HandWorked(
        (
            {"B": 2, "H": 4, "L": 18, "D": 32, "W": 3},
            {"B": 1, "H": 3, "L": 20, "D": 15, "W": 2},
        ),
        ("B L D",),
        scores=("B*H 2*(L//W) W 2*W",),
    ),
    "reformer_full": HandWorked(SELF, ("B L D",), scores=("B*H L L",)),
    # three clusters; the second tensor returned is the loss
    "routing": HandWorked(
        ({"B": 2, "H": 4, "L": 10, "Dk": 6, "W": 3}, {"B": 1, "H": 5, "L": 7, "Dk": 9, "W": 2}),
        ("B H L Dk", ""),
        scores=("B H 3 W W",),
    ),
    # the null key stands before the W chosen ones
    "colt5": HandWorked((WIDE[0] | NARROW[0], WIDE[1] | {"W": 5}), ("B L D",), scores=("B H W W+1",)),
}
