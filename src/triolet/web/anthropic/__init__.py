"""The Messages API: bodies that become chats, and answers made of content blocks.

What generates, and how tools, reasoning and grammars are dealt with, is the same as for chat completions.
"""
