"""The Python blocks of docs/webhooks.md, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from standardwebhooks import WebhookVerificationError

from tarry.core.signature import Secret
from tarry.events.webhooks import signed
from tests.support.api import api_installation
from tests.support.receiver import OTHER_SECRET, SECRET, exhausted_event
from tests.support.services import Services
from tests.support.spaces import SharedBroker

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
VERIFIES, RESUMES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EVENT = exhausted_event("orders")


def test_docs_webhooks_receiver_takes_what_is_signed_and_nothing_else() -> None:
    body, headers = signed(Secret.parse(SECRET), EVENT)
    space = {"secret": SECRET, "body": body, "headers": headers}
    exec(VERIFIES, space)  # noqa: S102  our own page
    event = space["event"]
    assert isinstance(event, dict)
    assert event["data"] == {"queue": "orders"}
    with pytest.raises(WebhookVerificationError):
        exec(VERIFIES, space | {"secret": OTHER_SECRET})  # noqa: S102  our own page


@pytest.mark.one_series
def test_docs_webhooks_program_resumes_a_queue(broker: SharedBroker, services: Services, tmp_path: Path) -> None:
    secret = {"TARRY_HOOK_SECRET": SECRET}
    with api_installation(broker, services, tmp_path, token=None, API_RATE="0", **secret) as api:
        api.schedule("orders", "waits", retry_after_ms=200_000)
        api.call("POST", "/queues/orders/pause", json={}).raise_for_status()
        (tmp_path / "recovered.py").write_text(RESUMES.replace("http://127.0.0.1:8086", api.url), encoding="utf-8")
        command = [sys.executable, str(tmp_path / "recovered.py")]
        done = subprocess.run(command, env=os.environ | secret, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["resumed"] is True
