"""The way of a message as a mermaid flowchart, for documents."""

from __future__ import annotations

from collections.abc import Iterator

from tarry.core.names import skip_key
from tarry.topology.model import Topology
from tarry.topology.steps import Step, steps

STYLES = (
    "classDef exchange fill:#e8f0fe,stroke:#4a6fa5,color:#16324f",
    "classDef queue fill:#fff4de,stroke:#c08a2b,color:#4a3208",
    "classDef actor fill:#eaf6ea,stroke:#5b8f5b,color:#1f3d1f",
)


def mermaid(topology: Topology) -> str:
    """Exchanges are hexagons, queues are cylinders, and "else" is the alternate exchange."""
    way = steps(topology)
    return "\n".join(["flowchart TD", *(f"  {part}" for part in (*_start(topology), *_arrows(way), *STYLES))]) + "\n"


def _start(topology: Topology) -> Iterator[str]:
    names = topology.broker_names
    yield 'worker(["your consumer rejects"]):::actor -. "dead-letters to" .-> e0'
    yield "q0 --> router"
    yield 'router(["the router decides"]):::actor -- "BCC: the whole way" --> e1'
    yield f'router -- "exhausted or final" --> review{{{{"{names.review}"}}}}:::exchange'
    yield f'review --> reviewq[("{names.review_queue}")]:::queue'


def _arrows(way: list[Step]) -> Iterator[str]:
    last = len(way) - 1
    for place, step in enumerate(way):
        key = f' -- "{_text(step.key)}"' if step.key else ""
        yield f'e{place}{{{{"{step.exchange}"}}}}:::exchange{key} --> q{place}[("{_label(step)}")]:::queue'
        if step.after == "onward":
            yield f'q{place} -. "expires" .-> e{place + 1}'
        if step.otherwise and place < last:
            yield f'e{place} -- "{_text(step.otherwise)}" --> e{place + 1}'
        if step.otherwise == skip_key(0, None):
            yield f'e{place} -. "no key, at any level" .-> e{last}'


def _label(step: Step) -> str:
    waits = f"<br>waits {step.waits}" if step.waits not in ("", "0") else ""
    return _text(step.queue) + waits


def _text(text: str) -> str:
    """Mermaid reads < as HTML and ~ at the start of a label as markup."""
    return text.replace("<", "#lt;").replace(">", "#gt;").replace("~", "#126;")
