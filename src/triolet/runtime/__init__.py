"""Runs step plans on a device: batches, KV cache, sampling. Knows no event loop and no text."""
