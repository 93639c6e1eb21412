"""Model architectures, their configuration and their weights."""
