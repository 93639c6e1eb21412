"""The replica's settings, one file for each category of the server-arguments page. worker/config.py joins them."""
