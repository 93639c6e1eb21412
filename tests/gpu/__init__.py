"""Tests that need a CUDA GPU. Those of Triton kernels also run on a CPU with TRITON_INTERPRET=1, slowly."""
