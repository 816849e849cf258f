"""Client library for consumers: report why a message failed, when to retry it, and that it succeeded.

`tarry.client.pika` and `tarry.client.aio_pika` are thin adapters for the two libraries; all decisions are made in the
other modules of this package, without I/O. Importing this package imports neither library, nor any part of the service.
"""

from tarry.client.attempt import Attempt
from tarry.client.classify import Classes, Verdict
from tarry.client.deduplicator import MemoryDeduplicator
from tarry.client.exceptions import Final, RateLimited
from tarry.client.hints import check_response
from tarry.client.options import Options
from tarry.client.request import retry_request

__all__ = [
    "Attempt",
    "Classes",
    "Final",
    "MemoryDeduplicator",
    "Options",
    "RateLimited",
    "Verdict",
    "check_response",
    "retry_request",
]
