"""Generates docs/settings.md from the model."""

from __future__ import annotations

from tarry.settings.masking import shown
from tarry.settings.model import Settings
from tarry.settings.sources import FILE_VARIABLE, NAMES

_HEAD = f"""# Settings

`tarry config` prints the settings in effect, with passwords hidden, and where each came from.

A setting is taken from the first of these sources that has it:

1. **a flag**: `--set HTTP_PORT=9000`, as often as needed, or the command's own flag where it has one (`--topology`);
2. **the environment**: `HTTP_PORT=9000`. An empty variable counts as one that is not set;
3. **a file** in TOML, named by `--settings FILE` or by `{FILE_VARIABLE}`. Keys are written as in the environment or in
   lower case; an unknown key is an error:

   ```toml
   http_port = 9000
   rabbitmq_url = "amqp://tarry:secret@rabbit:5672/shop"
   TARRY_TOPOLOGY = "/etc/tarry/topology"
   ```

4. **the default** below.

In an address, percent-encode the password: `%23` for `#`, `%2F` for `/`, `%3F` for `?`, `%40` for `@`, `%25` for `%`.
An address that cannot be parsed is refused and not shown.

All errors are reported at once. Settings of the retries themselves (policies, tiers, names) are in the
[topology](topology.md); some settings override parts of it, for compatibility with services that tarry replaces.

| setting | default | meaning |
|---|---|---|
"""


def settings_markdown() -> str:
    """The whole page. The descriptions are in the model."""
    return _HEAD + "\n".join(_row(field, name) for field, name in NAMES.items()) + "\n"


def _row(field: str, name: str) -> str:
    info = Settings.model_fields[field]
    default = shown(info.default)
    return f"| `{name}` | {'not set' if default is None else f'`{default}`'} | {info.description} |"
