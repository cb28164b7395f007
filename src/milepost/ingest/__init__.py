"""Pipelines: a source is counted, cut, read page by page, consolidated, and its mark moved."""
