"""`canopy batch`: a file of requests through a running gateway, each answered exactly once."""
