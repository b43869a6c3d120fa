"""Verifies what authors wrote about shapes: comments, docstrings and annotations, against what was observed."""
