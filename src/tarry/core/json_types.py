"""How dataclasses appear in JSON and in the OpenAPI description."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""The docstring below a field is its description. Set as `__pydantic_config__`."""


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_base64(given: Any) -> Any:
    """The bytes of a text in base64; anything else is returned unchanged, for the validator that follows."""
    try:
        return base64.b64decode(given, validate=True) if isinstance(given, str) else given
    except (binascii.Error, ValueError):
        raise ValueError("should be base64") from None


Base64 = Annotated[
    bytes,
    PlainSerializer(encode_base64, when_used="json"),
    BeforeValidator(decode_base64),
    WithJsonSchema({"type": "string", "format": "byte"}),
]
"""Bytes, in JSON as base64."""
