"""Trial evaluation: what shapes and integers come to at sizes that are tried out."""
