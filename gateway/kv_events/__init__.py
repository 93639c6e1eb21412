"""Exact mode: what workers say their caches hold, and the token ids of prompts to compare with it."""
