"""Attention over the paged KV pool, one file per backend."""
