"""Models: finding and fetching them, reading their files, and computing logits. Knows no event loop."""
