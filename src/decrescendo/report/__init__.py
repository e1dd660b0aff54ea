"""What people look at: tables and figures made from plans, runs and scores."""
