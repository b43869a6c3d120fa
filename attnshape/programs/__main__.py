"""The file that the new Python of `attnshape run` runs; `launch` does the rest."""

import json
import os
import sys

# the first entry is this folder, whose modules must not hide those of the program
sys.path[0] = json.loads(os.environ["ATTNSHAPE_RUN"])["root"]

from attnshape.programs.launch import main  # noqa: E402 - it is found only now

main()
