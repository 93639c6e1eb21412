"""Structured output: what may be asked for, compiled grammars, and where an answer stands in its grammar."""
