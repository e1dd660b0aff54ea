"""Measurements: scripts that write to results/ and to pages in docs/. A package, or another one of its name would win."""
