"""The CUDA runner: passes captured in graphs or launched kernel by kernel, always ahead of the host's bookkeeping."""
