from __future__ import annotations

import os

import pytest

from tarry.demo.environment import ADDRESSES, drop_addresses, drop_settings
from tarry.settings.sources import NAMES

KEPT = {"RETRY_QUEUE": "shop.requests", "TARRY_TOPOLOGY": "/etc/tarry", "PATH": os.environ.get("PATH", "")}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict.fromkeys([*ADDRESSES, "PGHOST", "PGSSLMODE"], "x") | KEPT)


def test_drop_addresses_leaves_all_other_settings() -> None:
    assert drop_addresses() == sorted([*ADDRESSES, "PGHOST", "PGSSLMODE"])
    assert set(os.environ) - {"PYTEST_CURRENT_TEST"} == set(KEPT)


def test_drop_addresses_keeps_what_it_is_told_to() -> None:
    assert "RABBITMQ_CA_FILE" not in drop_addresses(keep=("RABBITMQ_CA_FILE",))
    assert os.environ["RABBITMQ_CA_FILE"] == "x"


def test_drop_settings_leaves_no_setting_at_all() -> None:
    assert "RABBITMQ_URL" in drop_settings()
    assert not set(os.environ) & {*NAMES.values(), "TARRY_SETTINGS"}
    assert "PATH" in os.environ
