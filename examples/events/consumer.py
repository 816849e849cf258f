"""Prints each event of tarry once, from the beginning of the stream, and goes on from there when it is started again.

python consumer.py OFFSET_FILE, and RABBITMQ_URL. It needs pika alone.
"""

import json
import os
import sys
from pathlib import Path

import pika

STREAM = "retry.events.stream"
place = Path(sys.argv[1])
url = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")


def read(channel, method, properties, body):
    headers = properties.headers
    event = {name.removeprefix("cloudEvents:"): headers[name] for name in headers if name.startswith("cloudEvents:")}
    event["data"] = json.loads(body)
    if not handled_before(event["id"]):
        print(json.dumps({name: event[name] for name in ("id", "type", "subject")}), flush=True)
    place.write_text(str(headers["x-stream-offset"]))  # after the event is handled: after a crash it comes again
    channel.basic_ack(method.delivery_tag)


def handled_before(event_id):
    """In earnest this is a unique key in your database, written together with what the event causes."""
    if event_id in SEEN:
        return True
    SEEN.add(event_id)
    return False


SEEN = set()
offset = int(place.read_text()) + 1 if place.exists() else "first"
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
channel.basic_qos(prefetch_count=100)  # a stream requires it
channel.basic_consume(STREAM, read, arguments={"x-stream-offset": offset})
try:
    channel.start_consuming()
except KeyboardInterrupt:
    channel.connection.close()
