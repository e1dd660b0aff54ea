"""What a run keeps on disk during training, so that it can resume after a crash."""
