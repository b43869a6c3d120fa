"""The programs in `sources` are run, and not imported."""

collect_ignore_glob = ["sources/*"]
