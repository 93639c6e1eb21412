"""GET /tuning: what the tuning guide says to each replica, from its metrics over a sliding window."""
