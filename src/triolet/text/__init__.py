"""Text: tokenisers, chat templates, detokenising, stop strings. Knows neither torch nor an event loop."""
