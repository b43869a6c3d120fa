"""labml-nn, by hand: einsum "ibhd,jbhd->ijbh"."""

from tests.libraries.hand_worked import HandWorked

PLAIN = ({"B": 2, "H": 4, "L": 10, "D": 32}, {"B": 1, "H": 3, "L": 7, "D": 18})
CROSS = ({"B": 2, "H": 4, "Lq": 10, "Lk": 13, "D": 32}, {"B": 3, "H": 2, "Lq": 1, "Lk": 11, "D": 14})

CASES = {
    "cross": HandWorked(CROSS, ("Lq B D",), scores=("Lq Lk B H",)),
    "rotary": HandWorked(PLAIN, ("L B D",), scores=("L L B H",)),
    # content (ac) and positions (b) are products of the query; the sum of both is what the softmax reads
    "relative": HandWorked(
        ({"B": 2, "H": 4, "L": 5, "Lp": 6, "D": 32}, {"B": 1, "H": 3, "L": 4, "Lp": 9, "D": 15}),
        ("L B D",),
        scores=("L Lp+L B H",),
        named="scores",
    ),
    "alibi": HandWorked((PLAIN[0] | {"H": 6, "D": 42}, PLAIN[1]), ("L B D",), scores=("L L B H",)),
    # "bcihd,bcnjhd->bchinj": each of L chunks compares its W tokens with the Lk tokens of two neighbours
    "retro": HandWorked(
        (
            {"B": 2, "H": 4, "L": 5, "Lk": 13, "D": 32, "Dk": 6, "W": 3},
            {"B": 1, "H": 3, "L": 2, "Lk": 11, "D": 15, "Dk": 8, "W": 4},
        ),
        ("B L*W D",),
        scores=("B L H W 2 Lk",),
    ),
}
