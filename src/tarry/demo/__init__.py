"""The demo of the main use case: a private broker and Postgres, the service, and a worker that fails on purpose."""
