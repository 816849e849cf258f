"""Postgres: the pool, named queries and migrations, and one module for each thing that is stored."""
