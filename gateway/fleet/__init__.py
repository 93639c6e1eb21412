"""Workers: states, registry, discovery, health."""
