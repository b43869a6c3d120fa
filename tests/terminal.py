"""Reads the output of a process on a pseudo-terminal."""

import os


def read_all(leader: int) -> str:
    """Return all output on a terminal until the other end is closed, then close this end."""
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux raises it once the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    return b"".join(chunks).decode().replace("\r\n", "\n")
