"""Decoding with caches in place: pages, cache memory, and the session that joins them with a model."""
