"""The SQL files: named queries, one file each, and numbered migrations."""
