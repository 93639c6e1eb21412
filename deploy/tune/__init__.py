"""`canopy tune`: judges a running fleet, or log files, by the rules of the tuning guide."""
