"""Writes of caches: which addresses, at which slots, of which rows; caches that grow."""
