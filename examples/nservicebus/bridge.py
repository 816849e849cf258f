"""Takes what NServiceBus endpoints moved to their error queue to tarry, which returns it when its retry is due.

python bridge.py error
"""

import os
import sys

import pika

FAILED_QUEUE = "NServiceBus.FailedQ"
TYPE = "NServiceBus.ExceptionInfo.ExceptionType"
MESSAGE = "NServiceBus.ExceptionInfo.Message"
OF_THE_FAILURE = ("NServiceBus.ExceptionInfo.", "NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "x-")


def request(properties):
    """The properties of the request: the message's own, and why it failed."""
    found = properties.headers or {}
    headers = {name: value for name, value in found.items() if not name.startswith(OF_THE_FAILURE)}
    headers["original_queue"] = found[FAILED_QUEUE]
    headers["error_type"] = str(found.get(TYPE, ""))
    headers["error_reason"] = str(found.get(MESSAGE, ""))
    properties.headers, properties.delivery_mode, properties.expiration = headers, 2, None
    return properties


def on_message(channel, method, properties, body):
    if FAILED_QUEUE not in (properties.headers or {}):
        print(f"left in the queue: message {properties.message_id} has no {FAILED_QUEUE}", file=sys.stderr)
        return
    channel.basic_publish("", "retry.scheduled", body, request(properties), mandatory=True)
    channel.basic_ack(method.delivery_tag)  # only now: the broker has confirmed the request


def main():
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"])).channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=100)
    channel.basic_consume(sys.argv[1], on_message)
    channel.start_consuming()


if __name__ == "__main__":
    main()
