"""What both sides of the HTTP contract use: settings, errors, logs, clocks, process guards. Imports neither side."""
