"""docs/scaling.md, from the JSON of a run: the model with its figures, and what it says of larger loads. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.suite.markdown import table
from benchmarks.suite.model import BUSY, Model
from benchmarks.suite.samples import Samples
from benchmarks.suite.svg import figure

S0 = {"S0 itself": 1, "10 times": 10, "100 times": 100, "1,000 times": 1_000}
SUSTAINED, BURST = 50, 200
"""Retries per second of the first system that tarry replaces."""

INTRO = """# Scaling

How far one machine goes, where the first wall is, and what to do there. This page is written by `make bench` from the
same run as [performance.md](performance.md): a model with that run's figures in it, not a promise about your machine.
Run it on yours.
"""

DO = """## What to do at each wall

- **A router process is full**: start more `tarry serve`, or several with one command, `tarry serve --processes 4`
  ([running.md](running.md#several-processes-from-one-command)). They share the request queue, and claims in Postgres
  keep them apart. Give them cores of their own; what several do on one machine is measured in
  [performance.md](performance.md#several-routers-on-one-machine).
- **A tier, a relay or the tap is full**: a queue is one process of the broker, on one core. Divide the load: policies
  with different delays have tiers of their own; an installation with another `prefix`, or in another vhost, has its own
  request queue, tiers, relays and tap. No tier is sharded by itself. If only some messages must not wait behind a burst
  of others, give their policy a [lane](policies.md#lanes).
- **The broker's cores are full**: more cores for each node first, since a quorum queue does its work on its leader.
  With several nodes set `queue_leader_locator = balanced` before the topology is applied, or all leaders are on the
  node that declared them.
- **Postgres is full**: its own machine and a fast disk for the WAL; `keep_payload = false` for policies whose bodies
  need not be rebuilt; with several installations, a database for each.
- **The broker's memory is full**: what waits costs memory on every member of its queue
  ([performance.md](performance.md#with-a-backlog)).

**Quorum group size.** Three members on three nodes survive the loss of one; five survive two, and all costs more.
Apply the topology when all nodes are up: a queue is declared with members on those that are there.
"""


def scaling(result: dict[str, Any]) -> str | None:
    """None where the run does not tell enough."""
    found = Samples.from_json(result)
    model = Model.fitted(found)
    if model is None:
        return None
    return "\n".join([INTRO, _model(model), _walls(model), _loads(model), _check(found, model), DO])


def _model(model: Model) -> str:
    rows = [
        ["router, one process", f"{model.router_s * 1e6:.0f} µs"],
        ["RabbitMQ, one node", f"{model.broker_s * 1e6:.0f} µs"],
        [
            "RabbitMQ, three nodes together",
            f"{model.replicated_s * 1e6:.0f} µs" if model.replicated_s else "not measured",
        ],
        ["Postgres", f"{model.postgres_s * 1e6:.0f} µs"],
    ]
    text = (
        "## The model\n\nProcessor time for one retry with a 512-byte body, from request to recorded return, and "
        f"{figure(model.tier_per_s)} messages per second through one tier and its whole way home. Planned is with "
        f"cores that are busy for {BUSY:.0%} of the time.\n"
    )
    return "\n".join([text, table(("part", "for one retry"), rows)])


def _walls(model: Model) -> str:
    rows = [[part, f"{per_s:,.0f}/s"] for part, per_s in sorted(model.walls().items(), key=lambda wall: wall[1])]
    return "\n".join(["## Where each part needs its second\n", table(("part", "retries per second"), rows)])


def _loads(model: Model) -> str:
    columns = ("load", "retries per second", "routers", "broker cores", "Postgres cores", "queues for one tier")
    rows = list(_load_rows(model))
    text = (
        f"## Ten, a hundred and a thousand times the load of S0\n\nS0 has {SUSTAINED} retries a second, and {BURST} in "
        "a burst. The last column: how many queues a tier that takes all the load would have to be divided into.\n"
    )
    return "\n".join([text, table(columns, rows)])


def _load_rows(model: Model) -> Iterator[list[str]]:
    for name, times in S0.items():
        for kind, per_s in (("sustained", SUSTAINED * times), ("burst", BURST * times)):
            needs = model.needs(per_s)
            cells = (needs.routers, needs.broker_cores, needs.postgres_cores, needs.queues)
            yield [f"{name}, {kind}", f"{per_s:,}", *map(str, cells)]


def _check(found: Samples, model: Model) -> str:
    """The model against three nodes; left open where they were not measured."""
    heading = "## Checked against three nodes\n"
    three, one = (found.spread("cluster", subject, "per_s") for subject in ("3 nodes", "1 node"))
    if three is None or one is None or model.replicated_s is None:
        return f'{heading}\nNot measured in this run: `make bench ARGS="--only cluster"` does it.\n'
    all_s = model.replicated_s + model.router_s + model.postgres_s
    single = model.broker_s + model.router_s + model.postgres_s
    foretold = one.median * single / all_s
    return (
        f"{heading}\nOn the same cores, three nodes spend {model.replicated_s / model.broker_s:.1f} times the broker's "
        f"processor time on each retry. If processor time is all that counts, {figure(one.median)}/s on one node "
        f"become {figure(foretold)}/s; measured were {figure(three.median)}/s, {three.median / foretold:.2f} of that.\n"
    )
