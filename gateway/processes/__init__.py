"""Several gateway processes on one port: the parent that keeps them alive, and what they tell each other."""
