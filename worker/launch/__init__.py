"""Starts one replica: the frontend in this process, the scheduler in a child, and both end together."""
