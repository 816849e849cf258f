"""Routes a user's queue into tarry with broker features only: policies, two bindings, a relay and a held queue.

`snapshot` reads the broker once. `merge`, `own_policy`, `obstacles`, `plan`, `exchanges` and `listing` decide and are
pure. `probe` tests the loop on a twin of the queue, and only then does `apply` change anything; `detach` undoes it.
"""
