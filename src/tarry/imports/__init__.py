"""Moves waits that began elsewhere into tarry, with their due times."""
