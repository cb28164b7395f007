"""What looks at a store from outside: verify, and what is to come."""
