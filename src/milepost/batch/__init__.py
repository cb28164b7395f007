"""Batches (spec A): steps whose outputs are the next step's jobs, gates, polling, a reducer."""
