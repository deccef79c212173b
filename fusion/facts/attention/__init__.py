"""Attention, the caches that it reads, and the projections in front."""
