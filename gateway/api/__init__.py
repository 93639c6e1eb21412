"""HTTP surface: the hot path callable and the FastAPI app."""
