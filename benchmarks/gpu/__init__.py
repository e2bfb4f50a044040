"""Tests and benchmarks of the CUDA engine on a real GPU: `python -m benchmarks.gpu test|bench|peers|tune`."""
