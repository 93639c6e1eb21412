"""The frontend process: HTTP in, tokens to the scheduler, text out."""
