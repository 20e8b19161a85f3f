"""Benchmarks: measured with one client for every server, on the machine at hand. See README.md here."""
