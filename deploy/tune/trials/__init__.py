"""`canopy tune --apply`: experiments on a canary replica, one change each, kept or dropped by what is measured."""
