"""`python -m milepost.cli` is the `milepost` command."""

from milepost.cli import main

main()
