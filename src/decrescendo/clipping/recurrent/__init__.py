"""Recurrent layers and cells: while recording they are replaced by linear uses and a scan over time."""
