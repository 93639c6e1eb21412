"""Host-side logic of the CUDA runner: NumPy only, no GPU."""
