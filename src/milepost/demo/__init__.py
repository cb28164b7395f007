"""`milepost demo`: what its workers run, what a cheat tries, and the story told around both."""
