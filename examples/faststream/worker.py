"""FastStream is built on aio-pika, so its messages have what tarry's client needs: a middleware settles them."""

import asyncio
import json
import os

from faststream import AckPolicy, BaseMiddleware, FastStream
from faststream.rabbit import QueueType, RabbitBroker, RabbitMessage, RabbitQueue

from tarry.client.aio_pika import Retries, attempt_of

QUEUE = "orders"
retries: Retries


class Retried(BaseMiddleware):
    """Outermost, so that whatever the handler raises ends here: acknowledged, or asked to come again."""

    async def consume_scope(self, call_next, message):
        async with retries.handling(QUEUE, message.raw_message):
            return await call_next(message)


broker = RabbitBroker(os.environ["RABBITMQ_URL"], middlewares=[Retried])
app = FastStream(broker)


@app.on_startup
async def connect():
    global retries
    retries = Retries(await broker.connect())


@app.on_shutdown
async def close():
    await retries.close()


# MANUAL: the middleware settles, and FastStream does not.
@broker.subscriber(RabbitQueue(QUEUE, queue_type=QueueType.QUORUM, durable=True), ack_policy=AckPolicy.MANUAL)
async def handle(order: dict, message: RabbitMessage):
    attempt = attempt_of(message.raw_message, QUEUE)
    print(json.dumps({"order": order["id"], "attempt": attempt.number}), flush=True)
    if attempt.number < order["succeeds_at"]:
        raise ValueError(f"attempt {attempt.number} was too early")


if __name__ == "__main__":
    asyncio.run(app.run())
