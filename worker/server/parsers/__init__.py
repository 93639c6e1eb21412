"""Reads reasoning and tool calls out of what a model writes. Pure, and independent of how the text is cut."""
