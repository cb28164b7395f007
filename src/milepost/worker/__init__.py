"""The worker: claims jobs, runs their handlers, settles what came of them."""
