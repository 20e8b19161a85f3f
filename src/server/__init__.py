"""Makes ``python -m server`` work; everything it does lives in :mod:`triolet`."""
