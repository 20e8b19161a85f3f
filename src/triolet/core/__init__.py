"""The engine core and the tasks that run it: token ids in, token ids out. Knows no text and no HTTP."""
