"""How many replicas a model gets, which one leaves, and how a new one is warmed before it gets traffic."""
