"""See pyproject.toml."""
