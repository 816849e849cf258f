"""What an OTLP receiver got, decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.support.receiver import Receiver

PATH = "/v1/traces"


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    """Ids of spans of the same trace."""
    failed: bool
    state: str
    service: str

    @property
    def ms(self) -> int:
        return (self.end_ns - self.start_ns) // 1_000_000


def address_of(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}"


def received_spans(receiver: Receiver) -> list[ReceivedSpan]:
    return [span for request in receiver.at(PATH) if request.status == 204 for span in decoded(request.body)]


def decoded(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for resource in request.resource_spans:
        service = _plain(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert all(link.trace_id == span.trace_id for link in span.links)
                found.append(
                    ReceivedSpan(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        kind=span.kind,
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        attributes=_plain(span.attributes),
                        links=tuple(link.span_id.hex() for link in span.links),
                        failed=span.status.code == span.status.STATUS_CODE_ERROR,
                        state=span.trace_state,
                        service=service,
                    )
                )
    return found


def _plain(attributes: Any) -> dict[str, Any]:
    def value(one: KeyValue) -> Any:
        return getattr(one.value, one.value.WhichOneof("value") or "string_value")

    return {one.key: value(one) for one in attributes}
