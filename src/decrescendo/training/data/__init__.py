"""The rows that a training draws from, and what is asked of them before the first step."""
