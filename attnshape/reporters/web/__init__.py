"""The pages of `--format html`: one self-contained file each, which a browser opens without a network."""
