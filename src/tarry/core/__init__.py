"""The pure core: names, delays, policies, decisions and states.

Its law: nothing here does I/O, reads a clock or draws a random number. `now` and the jitter draw are arguments, so
every answer can be written down in a test as a literal. Only the standard library and pydantic are imported.
"""
