"""The tuning guide as rules over what was seen of a replica: what `canopy tune` and the gateway's /tuning judge by."""
