"""Dramatiq: a middleware in place of its own Retries. Run with `dramatiq worker`, send with `python worker.py`.

Dramatiq's queues name a dead-letter exchange of their own, so `tarry attach` refuses them, and its messages do not show
their AMQP headers. The message id is enough: the audit counts the attempts by it.
"""

import json
import os
import sys

import dramatiq
import pika
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Middleware, default_middleware
from dramatiq.middleware import Retries as DramatiqsOwn

from tarry.client import retry_request

QUEUE = "orders"


class TarryRetries(Middleware):
    """A message whose retry was asked for counts as done. If tarry cannot be asked, Dramatiq's own delay steps in."""

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if exception is None:
            return
        request = retry_request(message.queue_name, exception, message_id=message.message_id)
        try:
            broker.channel.basic_publish("retry.intake", "", message.encode(), request, mandatory=True)
        except pika.exceptions.AMQPError:
            del broker.channel
            broker.enqueue(message, delay=10_000)


middleware = [one() for one in default_middleware if one is not DramatiqsOwn]
# confirm_delivery: a request counts when the broker has confirmed it.
broker = RabbitmqBroker(url=os.environ["RABBITMQ_URL"], confirm_delivery=True, middleware=[*middleware, TarryRetries()])
dramatiq.set_broker(broker)
seen = {}


@dramatiq.actor(queue_name=QUEUE)
def ship(order):
    attempt = seen[order["id"]] = seen.get(order["id"], 0) + 1
    print(json.dumps({"order": order["id"], "attempt": attempt}), flush=True)
    if attempt < order["succeeds_at"]:
        raise ValueError(f"attempt {attempt} was too early")


if __name__ == "__main__":
    ship.send(json.loads(sys.argv[1]))
