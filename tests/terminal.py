"""Reads what a process writes to a pseudo-terminal."""

import os


def read_all(leader: int) -> str:
    """Return everything that is written to a terminal until the other end is closed, and close this one."""
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux says so where the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    return b"".join(chunks).decode().replace("\r\n", "\n")
