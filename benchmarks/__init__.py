"""Programs that measure; each prints what it ran, on what, and the figures. docs/performance.md keeps the results."""
