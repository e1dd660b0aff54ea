"""A corpus of small programs: hostile ones, which must be refused, and benign ones, which must be exact."""
