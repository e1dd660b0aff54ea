"""What the command line trains, by name: a model, a loss, data, and settings to start from."""
