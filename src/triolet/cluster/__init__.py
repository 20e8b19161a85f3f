"""How a front end reaches the engine core. Knows no text and no HTTP."""
