"""The main job, to watch: a private broker and Postgres, the service, and a worker that fails on purpose."""
