"""The SQL files: named queries by subject (README.md says how), and numbered migrations."""
