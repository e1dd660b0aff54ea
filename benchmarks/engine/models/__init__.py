"""The benchmark's models: plain torch, as a user would write them, with nothing in them for any DP library."""
