"""Makes properties safe to publish, and checks that they fit into one frame."""

from __future__ import annotations

from tarry.amqp.field_tables import head, text_entry
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.contract import headers as h

FRAME_OVERHEAD = 8 + 12
"""Bytes of a content header frame besides the properties."""

DIRECT_REPLY = b"amq.rabbitmq.reply-to"
"""The broker closes a channel that publishes with this reply-to, unless the channel itself consumes replies."""

_USER_ID = head(h.USER_ID)


def safe(old: Properties, headers: bytes) -> Properties:
    """The properties with these headers, without what does harm: the user_id of another user closes the channel (it
    becomes a header), an expiration ends the wait early, and a transient message is lost in a crash.
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
    """Whether the header frame is within the limit, with `room` bytes to spare.

    A larger frame would close the connection, which affects all messages on it.
    """
    return properties.size() + FRAME_OVERHEAD + room <= frame_max
