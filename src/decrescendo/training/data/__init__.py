"""The rows that a training samples from, and the checks of the data before the first step."""
