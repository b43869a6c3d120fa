"""What test suites use: `assert_shapes` and the pytest fixture `shape_snapshot`."""
