"""Writes the shapes that a trace knows into source code as annotations or comments, and keeps every other byte."""
