"""The AMQP wire: field tables, properties, frames, connections, consumers, publishers, and the management API."""
