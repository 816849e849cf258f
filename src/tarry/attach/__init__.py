"""Routing a user's queue into tarry by broker means alone: one policy, two bindings and a relay queue.

`survey` reads the broker once. `merge`, `settings`, `plan`, `exchanges` and `listing` decide and are pure. `probe`
proves the loop on a twin of the queue, and only then does `perform` change anything; `detach` takes it back.
"""
