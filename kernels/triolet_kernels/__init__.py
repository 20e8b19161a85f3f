"""The operations of a language model: one contract (``ops``), several implementations.

A library of its own below the engine: it knows nothing of the ``triolet`` package.
"""
