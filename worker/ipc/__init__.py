"""The messages between frontend and scheduler, and the sockets that carry them."""
