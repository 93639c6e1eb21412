"""OpenTelemetry traces of both sides, without OpenTelemetry unless they are on: identities, spans, and their export."""
