"""Messages out and in: what ended is told to whoever asked for it, and jobs arrive as messages."""
