"""Named schedules, tasks with the papers' settings, and the demonstration."""
