"""What noise does to learning: influences, bounds, and the schedules that minimise them. No torch."""
