"""Maintenance: the clock's only voice. Every chore is compare-and-set, bounded, and repeatable."""
