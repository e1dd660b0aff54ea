"""Recurrent layers and cells, replaced while recording by linear uses and a pass through time."""
