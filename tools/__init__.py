"""What writes pages and takes measures of the project itself; no part of the wheel."""
