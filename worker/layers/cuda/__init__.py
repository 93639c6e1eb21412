"""Kernels for CUDA GPUs, written in Triton. Imported by the CUDA runner only."""
