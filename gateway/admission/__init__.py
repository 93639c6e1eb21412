"""Who gets in: API keys, limits of each, and the queue in front of the workers."""
