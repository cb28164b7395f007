"""`milepost demo`: the job of its workers, the attempts to cheat, and the story around both."""
