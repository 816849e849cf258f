"""Operator actions on retries: cancel, retry now, pause, release, review.

Bindings on the broker carry out each action, and Postgres stores the request, so that each result is exact and
survives a restart of any component.
"""
