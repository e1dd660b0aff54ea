"""Tasks that the command line trains by name: a model, a loss, data, and default settings."""
