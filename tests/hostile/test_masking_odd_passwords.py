"""Passwords that were not percent-encoded, in every address there is: no command shows three characters of one."""

from __future__ import annotations

import pytest

from tests.hostile.test_masking_secrets import COMMANDS, said_by_a_process
from tests.support.cli import run_cli

NASTY = [
    "Qz7#Wx9Vk3",
    "#Qz7Wx9Vk3",
    "Qz7/Wx9Vk3",
    "947/Wx9Vk3",
    "/Qz7Wx9Vk3",
    "Qz7?Wx9Vk3",
    "947?heartbeat=Wx9Vk3",
    "Qz7/?heartbeat=Wx9",
    "Qz7@Wx9Vk3",
    "@Qz7Wx9Vk3",
    "Qz7@Wx9:947",
    "947/Wx9@Vk3Jq8",
    "Qz7@947/Wx9?user=Vk3",
    "Qz7%Wx9Vk3",
    "Qz7%zzWx9Vk3",
    "Qz7%0",
    "Qz7[Wx9]Vk3",
    "Qz7[Wx9Vk3",
    "Qz7]Wx9Vk3",
    "Qz7℀Wx9Vk3",
    "Qz7\tWx9Vk3",
    "Qz7 Wx9/Vk3",
    "Qz7 Wx9 Vk3",
    "Qz7\\Wx9#Vk3",
    "Qz7'Wx9/Vk3",
    "Qz7&password=Wx9",
    "Qz7?password=Wx9",
    "Qz7:Wx9/Vk3",
    "Qz7,Wx9:947/Vk3",
    "[/blue]Qz7/Wx9",
]
ADDRESSES = {
    "RABBITMQ_URL": "amqp://user:{}@127.0.0.1:1/shop",
    "RABBITMQ_MANAGEMENT_URL": "http://user:{}@127.0.0.1:1",
    "DATABASE_URL": "postgresql://user:{}@127.0.0.1:1/tarry?connect_timeout=2",
    "TARRY_API": "http://user:{}@127.0.0.1:1",
}
GOOD = {name: address.format("good") for name, address in ADDRESSES.items() if name != "TARRY_API"}
SOME = [("topology", "verify"), ("audit", "verify")]
"""One that reads the broker's address alone, and one that reads all. Where an address can be read after all, they say
where they did not get through."""
WORST = "Qz7/Wx9@Vk3"
ENCODE = "percent-encode"


def parts_of(password: str) -> set[str]:
    """Three characters each; but for those of plain words, which any text may have."""
    found = {password[at : at + 3] for at in range(len(password) - 2)}
    return {part for part in found if any(one.isupper() or one.isdigit() for one in part)}


def said_of(password: str, arguments: tuple[str, ...]) -> str:
    """What a command says, without any part of the password."""
    said = run_cli(arguments).output
    found = sorted(part for part in parts_of(password) if part in said)
    assert not found, f"{found} of the password is in: {said[:500]}"
    return said


@pytest.mark.parametrize("setting", ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL"])
@pytest.mark.parametrize("password", NASTY)
def test_commands_show_nothing_of_a_password_that_is_not_encoded(
    setting: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (GOOD | {setting: ADDRESSES[setting].format(password)}).items():
        monkeypatch.setenv(name, value)
    for arguments in [("config",), *SOME]:
        said_of(password, arguments)


@pytest.mark.parametrize("setting", ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL"])
@pytest.mark.parametrize("arguments", [*COMMANDS, ("serve",)], ids=" ".join)
def test_every_command_asks_for_percent_encoding_and_shows_nothing(
    setting: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (GOOD | {setting: ADDRESSES[setting].format(WORST)}).items():
        monkeypatch.setenv(name, value)
    assert ENCODE in said_of(WORST, arguments)


@pytest.mark.parametrize("password", NASTY)
def test_commands_show_nothing_of_a_password_for_the_api(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_API", ADDRESSES["TARRY_API"].format(password))
    for arguments in (("review", "list"), ("pause", "orders"), ("status",)):
        said_of(password, arguments)


@pytest.mark.parametrize("password", NASTY)
@pytest.mark.parametrize("pair", ["{}", "{}=5", "HTTP_PORT={}", "RABBITMQ_URL={}"])
def test_config_shows_nothing_of_an_address_in_the_wrong_place(password: str, pair: str) -> None:
    said_of(password, ("config", "--set", pair.format(ADDRESSES["RABBITMQ_URL"].format(password))))


@pytest.mark.parametrize(
    ("option", "setting"), [("--url", "RABBITMQ_URL"), ("--management-url", "RABBITMQ_MANAGEMENT_URL")]
)
@pytest.mark.parametrize("password", NASTY)
def test_the_demo_shows_nothing_of_a_password_of_a_given_broker(password: str, option: str, setting: str) -> None:
    url = () if option == "--url" else ("--url", GOOD["RABBITMQ_URL"])
    said_of(password, ("demo", *url, option, ADDRESSES[setting].format(password)))


def test_a_router_shows_nothing_of_a_password_that_is_not_encoded() -> None:
    """As a process, which sets up its log differently. The tests above check each address by itself."""
    given = {setting: address.replace("good", WORST) for setting, address in GOOD.items()}
    said = said_by_a_process(("serve",), given | {"HTTP_PORT": "0"})
    assert ENCODE in said
    assert not [part for part in parts_of(WORST) if part in said]
