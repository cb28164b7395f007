"""Milepost."""
