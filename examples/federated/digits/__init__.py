"""A Flower project with decrescendo; see README.md."""
