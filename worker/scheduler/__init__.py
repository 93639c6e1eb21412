"""Decides what each step computes: queue, admission, chunks, retraction, release. Pure Python and NumPy."""
