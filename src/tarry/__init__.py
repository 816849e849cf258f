"""tarry: delayed retries for every RabbitMQ queue, held by the broker and proven complete in Postgres."""

__version__ = "0.1.0"
