"""The names of operations that only move numbers from place to place."""

from __future__ import annotations

from attnshape.inference.kinds import JOIN, LAYOUT, STACK

JOINS = JOIN | STACK
MOVES = LAYOUT | JOINS
