"""What a run keeps on disk while it is trained, so that it survives a crash."""
