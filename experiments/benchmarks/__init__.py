"""Benchmarks of the parts: python -m experiments.benchmarks.NAME."""
