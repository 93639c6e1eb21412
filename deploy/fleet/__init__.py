"""Replicas as Ray actors: a controller keeps the wanted number alive, a registry tells gateways where they are."""
