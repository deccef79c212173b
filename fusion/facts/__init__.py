"""Facts: what a value *is* (a normalised x, a rotated x, a quantised x, a written cache), spelling aside."""
