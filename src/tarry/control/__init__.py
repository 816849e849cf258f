"""What an operator can do to retries: cancel, retry now, hold, release, review.

The broker's bindings do the work and Postgres remembers what was wanted, so that each answer is exact and outlives a
restart of anything.
"""
