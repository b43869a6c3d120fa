"""The long run of the fuzzers: `python -m tests.fuzz --long`, in parts by `--family`, `--seed` and `--cases`."""

from tests.fuzz.campaign import main

main()
