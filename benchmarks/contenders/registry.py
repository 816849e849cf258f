"""All contenders, and how each is set up."""

from __future__ import annotations

from benchmarks.contenders.aio_loop import AioLoop
from benchmarks.contenders.delayed_retry import DelayedRetry
from benchmarks.contenders.frameworks import Framework
from benchmarks.contenders.pollers import TUNED, USUAL
from benchmarks.contenders.protocol import Contender, Facts
from benchmarks.contenders.tarry import Tarry

APPS = "benchmarks.contenders.apps"
CELERY = ("celery", "-A", f"{APPS}.celery_app", "worker", "-Q", "jobs", "--loglevel", "ERROR")
CELERY_SETTINGS = {
    "worker": "its defaults: prefork, one process for each core, prefetch multiplier 4; log level ERROR",
    "publishing": "confirm_publish on; task_acks_late on; no result backend",
}

CELERY_NATIVE = Framework(
    slug="celery-native",
    name="Celery, native delayed delivery",
    size=4_000,
    program="celery_app",
    worker=CELERY,
    packages=("celery", "kombu", "amqp"),
    facts=Facts(
        durable="yes: 28 quorum queues, dead-lettered at least once",
        delays="whole seconds, rounded down: up to a second early",
        same_queue="yes, Celery tasks only",
        audit="no",
    ),
    settings=CELERY_SETTINGS
    | {
        "queues": "quorum, topic exchange, broker_native_delayed_delivery_queue_type quorum",
        "returns": "to a queue that a bare consumer watches, so that no second execution is charged",
    },
    extra={"BENCH_CELERY": "native"},
    due_header="due-ms",
)
CELERY_COUNTDOWN = Framework(
    slug="celery-countdown",
    name="Celery, countdown",
    size=5_000,
    program="celery_app",
    worker=CELERY,
    packages=("celery", "kombu", "amqp"),
    facts=Facts(
        durable="unacknowledged in a worker's memory; without a worker nothing comes due",
        delays="any; before RabbitMQ 4.3 the broker's consumer timeout (30 min unless set) ends longer ones",
        same_queue="yes, Celery tasks only",
        audit="no",
    ),
    settings=CELERY_SETTINGS | {"queues": "classic, Celery's default; quorum queues would switch native delays on"},
    extra={"BENCH_CELERY": "countdown"},
)

DRAMATIQ = Framework(
    slug="dramatiq",
    name="Dramatiq",
    size=10_000,
    program="dramatiq_app",
    worker=("dramatiq", f"{APPS}.dramatiq_app"),
    packages=("dramatiq", "pika"),
    facts=Facts(
        durable="unacknowledged in a worker's memory, from a delay queue; without a worker nothing comes due",
        delays="any, up to 7 days; before RabbitMQ 4.3 its consumer timeout (30 min unless set) ends longer ones",
        same_queue="yes, Dramatiq messages only",
        audit="no",
    ),
    settings={
        "worker": "its defaults: one process for each core, 8 threads each, delay prefetch 8,000",
        "publishing": "confirm_delivery on, as recommended; classic durable queues, its only kind",
    },
    extra={},
)
TASKIQ = Framework(
    slug="taskiq",
    name="taskiq, aio-pika",
    size=15_000,
    program="taskiq_app",
    worker=("taskiq", "worker", f"{APPS}.taskiq_app:broker", "--workers", "2", "--log-level", "CRITICAL"),
    packages=("taskiq", "taskiq-aio-pika", "aio-pika"),
    facts=Facts(
        durable="in a queue, but dead-lettered at most once",
        delays="any, but in one queue: a short delay behind a long one waits for it",
        same_queue="yes, taskiq tasks only",
        audit="no",
    ),
    settings={
        "worker": "2 processes, prefetch 10, up to 100 tasks at a time: its defaults; log level CRITICAL",
        "retries": "SmartRetryMiddleware, delay_queue of AioPikaBroker; quorum queues, its default",
    },
    extra={},
)
PROCRASTINATE = Framework(
    slug="procrastinate",
    name="Procrastinate",
    size=3_000,
    program="procrastinate_app",
    worker=(f"{APPS}.procrastinate_app", "work"),
    packages=("procrastinate", "psycopg"),
    facts=Facts(
        durable="yes: rows in Postgres",
        delays="any, seen at the next poll (5 s)",
        same_queue="Procrastinate jobs only: no RabbitMQ",
        audit="yes: events of each job in Postgres",
    ),
    settings={
        "worker": "1 process, concurrency 20, polling interval 5 s (default)",
        "retries": "RetryStrategy(wait=...)",
    },
    extra={},
    broker=False,
)

ALL: tuple[Contender, ...] = (
    Tarry(),
    TUNED,
    USUAL,
    CELERY_NATIVE,
    CELERY_COUNTDOWN,
    DRAMATIQ,
    TASKIQ,
    PROCRASTINATE,
    DelayedRetry(),
    AioLoop(),
)


def by_slug(slug: str) -> Contender:
    return next(one for one in ALL if one.slug == slug)
