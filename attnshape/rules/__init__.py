"""The rules: a page for each code that a check can report, in Markdown beside this file."""
