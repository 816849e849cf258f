"""Apply leaves a record in the vhost: which topology, from which folder, when."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tarry.amqp.management import Management
from tarry.topology.apply import apply
from tarry.topology.definitions import definitions
from tarry.topology.live import read_live
from tarry.topology.load import load
from tarry.topology.model import Topology
from tarry.topology.record import ApplyRecord, digest
from tarry.topology.verify import verify
from tests.integration.topology.installation import TopologyInstallation, drained, small_topology
from tests.support.spaces import SharedBroker, Vhost, drop_vhost, make_vhost

POLICY = '[[policy]]\nname = "default"\nschedule = [{}]\nmax_retries = 2\n'


def folder_with(folder: Path, delays: str) -> Topology:
    folder.mkdir(exist_ok=True)
    (folder / "tarry.toml").write_text(POLICY.format(delays), "utf-8")
    return load(folder)


def record_of(installation: TopologyInstallation) -> ApplyRecord | None:
    return read_live(Management(installation.address)).applied(installation.names)


def test_apply_records_digest_folder_host_and_time(vhost: Vhost, tmp_path: Path) -> None:
    topology, before = folder_with(tmp_path / "mine", '"2s"'), datetime.now(UTC)
    installation = TopologyInstallation(vhost, topology).apply()

    record = record_of(installation)

    assert record is not None
    assert (record.digest, record.folder, record.host) == (
        digest(topology),
        str(tmp_path / "mine"),
        socket.gethostname(),
    )
    assert record.at is not None
    assert before <= record.at <= datetime.now(UTC)


def test_apply_replaces_the_record_of_the_apply_before(vhost: Vhost, tmp_path: Path) -> None:
    installation = TopologyInstallation(vhost, folder_with(tmp_path / "one", '"2s"')).apply()
    first = record_of(installation)
    installation.apply()
    second = record_of(installation)
    other = folder_with(tmp_path / "two", '"2s", "8s"')
    apply(other, installation.address)

    bindings = vhost.api("exchanges/{vhost}/retry.applied/bindings/source")
    assert [one["arguments"]["tarry-folder"] for one in bindings] == [str(tmp_path / "two")]
    assert first is not None
    assert second is not None
    assert first.at is not None
    assert second.at is not None
    assert first.at < second.at


def test_apply_that_is_refused_records_nothing(vhost: Vhost) -> None:
    with TopologyInstallation(vhost).open_channel() as opened:
        opened.queue_declare("retry.audit", durable=True)
    installation = TopologyInstallation(vhost)

    with pytest.raises(Exception, match="Nothing was changed"):
        installation.apply()

    assert record_of(installation) is None


def test_the_record_loses_no_message_that_is_published_to_it(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.basic_publish("retry.applied", "applied", b"by mistake")
        assert [one.body for one in drained(opened, "retry.unroutable", 1, deadline=30)] == [b"by mistake"]


def test_the_record_of_each_prefix_is_its_own(vhost: Vhost) -> None:
    one, other = (
        TopologyInstallation(vhost),
        TopologyInstallation(vhost, small_topology(names={"prefix": "b.", "review": "b.review"})),
    )
    one.apply()
    other.apply()

    found = [record_of(one), record_of(other)]

    assert [record.digest for record in found if record is not None] == [digest(one.topology), digest(other.topology)]


@pytest.fixture
def elsewhere(broker: SharedBroker) -> Iterator[Vhost]:
    made = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    yield made
    drop_vhost(made)


def test_the_record_survives_an_export_and_import(
    installation: TopologyInstallation, vhost: Vhost, elsewhere: Vhost
) -> None:
    exported = vhost.api("definitions/{vhost}")
    there = TopologyInstallation(elsewhere, installation.topology)

    elsewhere.api("definitions/{vhost}", method="POST", body=exported)

    assert record_of(there) == record_of(installation)


def test_a_shipped_definitions_file_brings_no_record(vhost: Vhost) -> None:
    installation = TopologyInstallation(vhost)
    vhost.api("definitions/{vhost}", method="POST", body=definitions(installation.topology, vhost.name))

    assert record_of(installation) is None
    assert [
        finding for finding in verify(installation.topology, installation.address) if finding.check == "applied"
    ] == []
    assert apply(installation.topology, installation.address).declared == 0
    assert record_of(installation) is not None


def test_verify_notes_a_folder_that_is_not_the_one_applied(vhost: Vhost, tmp_path: Path) -> None:
    installation = TopologyInstallation(vhost, folder_with(tmp_path / "one", '"2s", "8s"')).apply()
    other = folder_with(tmp_path / "two", '"2s"')

    assert [one for one in verify(installation.topology, installation.address) if one.check == "applied"] == []
    (found,) = [one for one in verify(other, installation.address) if one.check == "applied"]

    assert found.level == "note"
    assert found.things == (f"topology {tmp_path / 'two'} (digest {digest(other)[:12]})",)
    assert found.problem.startswith(
        f"is not the one applied here, which is {tmp_path / 'one'} on {socket.gethostname()} (digest "
    )
    assert digest(installation.topology)[:12] in found.problem
