"""Rotations: of rows, of heads, by operators, and what movement stands around them."""
