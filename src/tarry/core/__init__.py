"""The pure core: names, delays, policies, decisions and states.

Nothing here does I/O, reads a clock or draws a random number. `now` and the jitter draw are arguments, so a test can
state every result as a literal. Only the standard library and pydantic are imported.
"""
