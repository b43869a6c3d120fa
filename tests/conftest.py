"""One thread each: the tests' tensors are small, and two workers with several threads each wait for one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
