"""`canopy plan`: how many replicas a load needs, by running the real scheduler and the real router in virtual time."""
