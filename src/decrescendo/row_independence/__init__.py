"""The proof, made at every pass, that what is computed for an example depends on that example alone."""
