"""For users' consumers: say why a message failed, when to come again, and that it succeeded.

`tarry.client.pika` and `tarry.client.aio_pika` are thin shells for the two libraries; everything they decide is decided
in the other modules here, without I/O. Importing this package imports neither of them, nor any part of the service.
"""

from tarry.client.attempt import Attempt
from tarry.client.classing import Classes, Verdict
from tarry.client.guard import MemoryGuard
from tarry.client.hints import check_response
from tarry.client.options import Options
from tarry.client.request import retry_request
from tarry.client.signals import Final, RateLimited

__all__ = [
    "Attempt",
    "Classes",
    "Final",
    "MemoryGuard",
    "Options",
    "RateLimited",
    "Verdict",
    "check_response",
    "retry_request",
]
