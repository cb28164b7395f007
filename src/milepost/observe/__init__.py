"""Checks of a store from outside."""
