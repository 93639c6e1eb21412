"""What the gateway does about failures: verdicts on attempts, circuit breakers, rests, retries, resumed streams."""
