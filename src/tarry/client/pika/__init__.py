"""For consumers that use pika: `Retries` for a BlockingConnection, `CallbackRetries` for all other connections."""

from tarry.client.pika.blocking import BlockingRetries as Retries
from tarry.client.pika.callback import CallbackRetries
from tarry.client.pika.delivery import attempt_of

__all__ = ["CallbackRetries", "Retries", "attempt_of"]
