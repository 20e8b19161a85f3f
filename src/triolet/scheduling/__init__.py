"""Which sequences compute which positions in which step, and where their keys and values are kept.

Pure and deterministic: this package knows neither torch nor an event loop nor a clock.
"""
