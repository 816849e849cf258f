"""The dashboard: pages and forms, rendered on the server, that call `Operations` as the HTTP API does."""
