"""KV pages and the prefixes they hold: allocator and radix tree. Pure Python and NumPy."""
