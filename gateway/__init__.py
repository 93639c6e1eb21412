"""The gateway: one address in front of many workers; routes by prefix and load, loses no request."""
