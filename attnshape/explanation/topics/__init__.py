"""What an article says about each stage of an attention: one file for each reason, and the registry that lists them."""
