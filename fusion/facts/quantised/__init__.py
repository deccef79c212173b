"""Rows that are quantised by constants or by their own largest value, and integers turned back into floats."""
