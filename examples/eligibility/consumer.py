"""Consumes a check queue: decides about each notification that is due, just before it returns. Plain pika, no tarry.

python consumer.py QUEUE FILE, where FILE has the ids of inactive devices, one in a line. It is read for each message.
"""

import json
import os
import sys
from pathlib import Path

import pika


def decide(channel, method, properties, _body):
    device = properties.headers.get("device_id")  # a message without one is wanted
    if device not in INACTIVE.read_text(encoding="utf-8").split():
        channel.basic_nack(method.delivery_tag, requeue=False)  # it goes on to its queue
        print(json.dumps({"device": device, "returns": True}), flush=True)
        return
    skipped = {
        "id": properties.headers["tarry-id"],
        "round": properties.headers["tarry-round"],
        "outcome": "skipped",
        "reason": f"device {device} is inactive",
    }
    about = pika.BasicProperties(content_type="application/vnd.tarry.outcomes+json", delivery_mode=2)
    report = json.dumps({"outcomes": [skipped]})
    channel.basic_publish("retry.reports", "", report, about, mandatory=True)  # until it is confirmed
    channel.basic_ack(method.delivery_tag)  # only now: nothing is left of the message but the report
    print(json.dumps({"device": device, "returns": False}), flush=True)


if __name__ == "__main__":
    QUEUE, INACTIVE = sys.argv[1], Path(sys.argv[2])
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"]))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=50)
    channel.basic_consume(QUEUE, decide)
    channel.start_consuming()
