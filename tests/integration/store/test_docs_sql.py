from __future__ import annotations

import re
from pathlib import Path

from tests.support.audit_store import AuditStore, id_of, request

DOCS = Path(__file__).parents[3] / "docs" / "audit.md"
M = id_of("m")


def test_every_query_in_the_docs_runs_and_success_by_attempt_counts_right(store: AuditStore) -> None:
    queries = re.findall(r"```sql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(queries) == 8
    for message in ("m", "n"):
        store.claim(request(message))
        store.schedule(id_of(message), 1, due_in_ms=-10)
        store.see(id_of(message), 1)
    store.claim(request("m", round_=1, count=1))
    answers = [store.sql.execute(query.encode()).fetchall() for query in queries]
    assert [[int(number) for number in row] for row in answers[2]] == [[1, 2, 50]], "one of two failed again"
