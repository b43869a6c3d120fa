"""The values that stages pass on and reporters render: traces, reports, differences and batches of them. Pure data."""
