"""A router names its topology when it starts, and logs what is odd about it; it works all the same."""

from __future__ import annotations

from collections.abc import Callable

from tarry.topology.load import load
from tarry.topology.record import described
from tests.support.installation import POLICIES, Installation
from tests.support.router import Router

Start = Callable[..., Router]
LATE = '\n[[policy]]\nname = "late"\nmatch = { queue = "late.*" }\nschedule = ["250ms"]\nmax_retries = 1\n'


def test_serve_names_the_folder_that_it_started_with(installation: Installation, start: Start) -> None:
    router = start().wait_ready()

    assert router.logged("started")[0]["topology"] == described(load(installation.folder))
    assert router.logged("topology warning") == []


def test_serve_warns_when_another_folder_was_applied(installation: Installation, start: Start) -> None:
    applied = described(load(installation.folder))
    other = installation.folder / "other"
    other.mkdir()
    (other / "tarry.toml").write_text(POLICIES.replace("max_retries = 2", "max_retries = 1"), "utf-8")

    warning = start(TARRY_TOPOLOGY=str(other)).wait_ready().wait_logged("topology warning")

    assert warning["level"] == "warning"
    assert warning["subject"].startswith(f"topology {other} (digest ")
    assert warning["problem"].startswith(f"is not the one applied here, which is {installation.folder} on ")
    assert applied.rpartition(" ")[2] in warning["problem"]


def test_serve_warns_of_a_policy_that_never_applies(installation: Installation, start: Start) -> None:
    installation.write_policies(POLICIES + LATE)
    installation.apply()
    router = start().wait_ready()

    warning = router.wait_logged("topology warning")

    assert warning["subject"] == f"policy late ({installation.folder}/tarry.toml)"
    assert warning["problem"].startswith(
        f"can never apply: policy default ({installation.folder}/tarry.toml) comes first"
    )


def test_serve_warns_of_changed_files_when_it_reloads_them(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.write_policies(POLICIES + LATE)

    router.wait_logged("topology reloaded")

    assert router.wait_logged("topology warning")["subject"].startswith("policy late (")


def test_serve_warns_without_the_management_api_too(installation: Installation, start: Start) -> None:
    installation.write_policies(POLICIES + LATE)

    warning = start(RABBITMQ_MANAGEMENT_URL="http://127.0.0.1:9").wait_logged("topology warning", deadline=120)

    assert warning["subject"].startswith("policy late (")
