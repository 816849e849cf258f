"""The HTTP API. Every request passes the middleware; every error is a problem (RFC 9457)."""

PREFIX = "/api/v1"
