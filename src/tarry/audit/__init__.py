"""Audit: compares what Postgres says is waiting with what the broker has."""
