"""Runs forward passes: batches in, sampled tokens out."""
