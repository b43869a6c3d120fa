"""attnshape shows, proves and documents the shapes inside attention code."""

__version__ = "0.1.0"
