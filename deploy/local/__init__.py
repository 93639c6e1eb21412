"""One fleet on one machine: what `canopy serve` runs."""
