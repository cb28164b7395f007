"""Messages out and in: the ends of jobs and runs are delivered, and jobs arrive as messages."""
