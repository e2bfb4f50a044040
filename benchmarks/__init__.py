"""Benchmarks; each package prints what it measured and records it in `results`."""
