"""Replicas as Ray actors: a controller keeps the wanted number alive, and tells gateways where they are."""
