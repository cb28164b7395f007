"""The store: operations over named queries, on two databases, in two colours."""
