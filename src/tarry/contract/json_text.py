"""Why a text is no JSON, for people."""

from __future__ import annotations

import json
import sys


def json_problem(error: Exception) -> str:
    """Of an error that `json.loads` raised."""
    match error:
        case json.JSONDecodeError():
            return f"it is not valid JSON (line {error.lineno}, column {error.colno})"
        case UnicodeDecodeError():
            return f"it is not UTF-8 text, at byte {error.start}"
        case RecursionError():
            return "it is nested too deeply"
        case _ if "integer string conversion" in str(error):
            return f"a number in it has more than {sys.get_int_max_str_digits():,} digits"
        case _:
            return str(error)
