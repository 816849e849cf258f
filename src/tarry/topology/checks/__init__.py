"""The checks of `tarry topology verify`: pure functions from what is expected and what is live to findings."""
