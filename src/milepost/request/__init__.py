"""Asynchronous HTTP requests as jobs: sent, judged, waited for, on the record (spec C)."""
