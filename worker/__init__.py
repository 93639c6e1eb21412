"""One replica: a whole engine (scheduler, prefix cache, runner) behind an OpenAI-style HTTP server."""
