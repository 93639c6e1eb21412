"""How Canopy is run: the canopy command, the one-machine launcher, the Ray fleet."""
