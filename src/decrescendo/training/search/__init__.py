"""Settings searched for on public data, or on the private data at a price."""
