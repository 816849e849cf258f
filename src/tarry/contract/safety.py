"""What must not be on a message that tarry publishes, and how large its headers may be."""

from __future__ import annotations

from tarry.contract import headers as h
from tarry.contract.encoding import head, text_entry
from tarry.contract.properties import PERSISTENT, Properties

FRAME_OVERHEAD = 8 + 12
"""Bytes of a content header frame around the properties."""

DIRECT_REPLY = b"amq.rabbitmq.reply-to"
"""The broker closes the channel over it, unless that channel waits for a reply itself."""

_USER_ID = head(h.USER_ID)


def safe(old: Properties, headers: bytes) -> Properties:
    """The properties with these headers. A foreign user_id closes the channel (so it becomes a header), an expiration
    ends the wait early, a transient message dies in a crash.
    """
    if old.user_id is not None:
        headers += text_entry(_USER_ID, old.user_id.decode(errors="backslashreplace"))
    return Properties(
        content_type=old.content_type,
        content_encoding=old.content_encoding,
        headers=headers,
        delivery_mode=PERSISTENT,
        priority=old.priority,
        correlation_id=old.correlation_id,
        reply_to=None if old.reply_to == DIRECT_REPLY else old.reply_to,
        message_id=old.message_id,
        timestamp=old.timestamp,
        type=old.type,
        app_id=old.app_id,
    )


def in_frame(properties: Properties, frame_max: int, room: int = 0) -> bool:
    """A header frame over the limit would close the connection, and with it everyone's messages."""
    return properties.size() + FRAME_OVERHEAD + room <= frame_max
