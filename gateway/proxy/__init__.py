"""Moving bytes: upstream client, relay, retry."""
