"""A pool of threads on one BlockingConnection. pika is only ever touched from the connection's own thread."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pika

from tarry.client.pika import Retries, attempt_of

QUEUE = "orders"

connection = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"]))
channel = connection.channel()
channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
channel.basic_qos(prefetch_count=16)  # at least as many as there are threads
retries = Retries(connection)
pool = ThreadPoolExecutor(8)


@retries.handler(QUEUE, pool)
def handle(channel, method, properties, body):
    order, attempt = json.loads(body), attempt_of(properties, QUEUE)
    print(json.dumps({"order": order["id"], "attempt": attempt.number}), flush=True)
    if attempt.number < order["succeeds_at"]:
        raise ValueError(f"attempt {attempt.number} was too early")


channel.basic_consume(QUEUE, handle)
channel.start_consuming()
