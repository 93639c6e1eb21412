"""Grafana's dashboards as Python, the JSON made of them, and the files that provision it."""
