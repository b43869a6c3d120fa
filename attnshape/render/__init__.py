"""From a trace to text: rows as pure data, and one file a format that draws them. Nothing here imports torch."""
