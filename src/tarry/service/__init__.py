"""The service: builds its parts once, keeps them running, and shuts them down in order."""
