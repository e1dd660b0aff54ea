"""How one operation on trainable parameters becomes norms and weighted sums: one file an operation."""
