"""For consumers on pika: `Retries` on a BlockingConnection, `CallbackRetries` on any of the others."""

from tarry.client.pika.blocking import Retries
from tarry.client.pika.callback import CallbackRetries
from tarry.client.pika.delivery import attempt_of

__all__ = ["CallbackRetries", "Retries", "attempt_of"]
