"""The long run of the fuzzers.

`python -m tests.fuzz --long` tries 20,000 command lines, 10,000 damaged files, 2,000 generated programs, 500 signals,
and every hostile target and fault. `--family NAME --seed S --minutes 9` does a part of it, and its last line says how
to continue. `--family NAME --seed S --case N`, which each failure shows, tries one case again. Each case runs in a
process of its own, under limits of processes, memory and time, in a temporary folder; nothing is written elsewhere.
"""

from tests.fuzz.campaign import main

main()
