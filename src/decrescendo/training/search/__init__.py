"""Searches for training settings, on public data, or on private data at a privacy cost."""
