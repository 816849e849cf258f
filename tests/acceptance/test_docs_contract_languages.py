"""The examples of docs/contract.md for Node and Java, run as they stand: each request is scheduled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tarry.contract.retry_pb2 import RetryMessage
from tests.acceptance.shipped import ShippedService, serving_a_file
from tests.acceptance.up_command import running
from tests.support import runtimes
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
FORMS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "reject": ("orders", {"error_class": "retryable"}),
    "headers": ("orders", {"error_class": "rate_limited", "delay_ms": 30_000}),
    "envelope": ("invoices", {"error_class": "retryable"}),
}
"""In the order of the page: the queue that the example names, and what the router logs."""

NODE = """
import amqplib from "amqplib";
const connection = await amqplib.connect(process.env.RABBITMQ_URL);
const channel = await connection.createConfirmChannel();
async function handle() { throw new Error("as always"); }
%s
"""
NODE_ASKS = 'await channel.consume("%s", (message) => askForRetry(message, new Error("as always")));\n'

JAVA = """
import com.rabbitmq.client.*;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.*;

public final class Example {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("RABBITMQ_URL"));
        Channel channel = factory.newConnection().createChannel();
        channel.confirmSelect();
        new Example().consume(channel);
    }

    void handle(byte[] body) throws Exception { throw new Exception("as always"); }

    %s
}
"""
JAVA_CONSUMES = "void consume(Channel channel) throws Exception {\n%s}\n"
JAVA_ASKS = """
void consume(Channel channel) throws Exception {
    channel.basicConsume("%s", false, (tag, delivery) -> {
        try {
            askForRetry(channel, delivery, new Exception("as always"));
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }, tag -> {});
}
"""
JAVA_ENVELOPE = """
final class ByteString {
    byte[] bytes;

    static ByteString copyFrom(byte[] bytes) {
        ByteString made = new ByteString();
        made.bytes = bytes;
        return made;
    }
}

final class RetryMessage {
    private final byte[] bytes;

    private RetryMessage(byte[] bytes) { this.bytes = bytes; }

    static Builder newBuilder() { return new Builder(); }

    byte[] toByteArray() { return bytes; }

    static final class Builder {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();

        Builder setMessageId(String text) { return add(%(message_id)d, text.getBytes(StandardCharsets.UTF_8)); }
        Builder setOriginalPayload(ByteString text) { return add(%(original_payload)d, text.bytes); }
        Builder setOriginalQueue(String text) { return add(%(original_queue)d, text.getBytes(StandardCharsets.UTF_8)); }
        Builder setErrorReason(String text) { return add(%(error_reason)d, text.getBytes(StandardCharsets.UTF_8)); }
        RetryMessage build() { return new RetryMessage(out.toByteArray()); }

        private Builder add(int field, byte[] bytes) {
            out.write(field << 3 | 2);
            out.write(bytes.length);
            out.writeBytes(bytes);
            return this;
        }
    }
}
"""
"""What protoc's Java would write for these short fields; there is no protobuf for Java here."""


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    with serving_a_file(broker, services, tmp_path_factory.mktemp("service"), 0.02) as made:
        for queue, _ in FORMS.values():
            made.queue(queue)
        yield made


def example(kind: str, form: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == len(FORMS)
    return str(found[list(FORMS).index(form)])


def node(form: str, folder: Path) -> list[str]:
    (folder / "node_modules").symlink_to(runtimes.node_client() / "node_modules")
    text = NODE % example("js", form)
    asks = "" if form == "reject" else NODE_ASKS % FORMS[form][0]
    (folder / "example.mjs").write_text(text + asks, encoding="utf-8")
    return ["node", "example.mjs"]


def java(form: str, folder: Path) -> list[str]:
    libraries = ":".join(map(str, runtimes.jars()))
    block = example("java", form)
    body = JAVA_CONSUMES % block if form == "reject" else block + JAVA_ASKS % FORMS[form][0]
    fields = {field.name: field.number for field in RetryMessage.DESCRIPTOR.fields}
    (folder / "Example.java").write_text(JAVA % body + JAVA_ENVELOPE % fields, encoding="utf-8")
    runtimes.run("javac", "-cp", libraries, "-d", folder, folder / "Example.java")
    return ["java", "-cp", f"{libraries}:{folder}", "Example"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("language", ["node", "java"])
def test_docs_contract_example_is_scheduled(language: str, form: str, service: ShippedService, tmp_path: Path) -> None:
    command = (node if language == "node" else java)(form, tmp_path)
    queue, expected = FORMS[form]
    message = f"{command[0]}-{form}"
    service.work(queue, message, b"payload", tenant="acme")
    with running(command, os.environ | service.environment, tmp_path) as worker:
        wait_for(
            lambda: service.actions("scheduled", message) or worker.process.poll() is not None,
            deadline=120,
            what="the request to be scheduled",
        )
        assert worker.process.poll() is None, worker.text
    found = service.scheduled(message, 1)[0]
    assert {name: found[name] for name in expected} == expected
    assert found["queue"] == queue
    service.channel.queue_purge(queue)
