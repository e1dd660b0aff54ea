"""The rules by which operations on trainable parameters give per-example norms and weighted sums: one file
per operation."""
