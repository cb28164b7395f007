"""The store: operations over named queries, on two databases, in two colours."""

# Fan-in calls the rules that are registered for the roles of steps: wherever runs are moved, they
# must be there.
from milepost.store import watermarks as watermarks
