"""Spellings of a multi-head latent attention preamble, and near misses."""
