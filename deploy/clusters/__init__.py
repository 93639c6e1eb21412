"""Fleets over machines: what `ray up` puts on head and workers; the keeper of workers on machines of one's own."""
