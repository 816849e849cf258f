"""A database with many retries, as they would be after some weeks: most are over, some wait, some are in review."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg

RARE = "rare"
"""A queue with 1 of 10,000 retries."""

COMMON = "queue-0"
"""The queue with the most: about a third of them."""

_RETRIES = """
insert into retry (id, message_id, queue, exchange, routing_key, state, round, returned_round, retry_count, max_retries,
                   policy, error_class, error_type, error_reason, fingerprint, first_failed_at, claimed_at, tier,
                   delay_ms, entered_at, due_at, expected_at, returned_at, drift_ms, body, properties, updated_at,
                   owner, review_reason)
select gen_random_uuid(), 'm-' || g, queue, '', queue, state, tries, tries - 1, tries, 4, 'policy-' || kind %% 8,
       'retryable', 'Error' || kind %% 20, 'no answer from host-' || kind || ' within 30 s, request ' || g,
       md5(kind::text), began, began, 'retry.delay.1h', 3600000, began, due, due,
       case when state in ('returned', 'succeeded') then ended end, 5, body, properties, ended,
       'owner-' || g %% 5000,
       case when state = 'in_review' then 'retries exhausted: ' || tries || ' of 4, error ' || kind %% 15 end
  from (select g, kind, tries, state, began, body, properties,
               case when g %% 10000 = 7 then %(rare)s
                    else 'queue-' || floor(40 * power((hashint4(g) & 65535) / 65536.0, 3)) end as queue,
               case when state in ('scheduled', 'held', 'unroutable')
                    then %(now)s::timestamptz + interval '10 minutes' + (hashint4(g + 1) & 65535) * interval '4 seconds'
                    else began + interval '1 hour' end as due,
               least(began + interval '2 hours', %(now)s::timestamptz) as ended
          from (select g, (hashint4(g + 2) & 65535) %% 500 as kind, 1 + g %% 4 as tries,
                       case when g %% 100 < 10 then 'in_review' when g %% 100 < 30 then 'scheduled'
                            when g %% 100 = 30 then 'held' when g %% 1000 = 31 then 'unroutable'
                            when g %% 100 < 40 then 'returned' else 'succeeded' end as state,
                       %(now)s::timestamptz - (%(count)s - g) * interval '2 seconds' as began,
                       decode(repeat(md5(g::text), 32), 'hex') as body,
                       decode(repeat(md5(g::text), 37), 'hex') as properties
                  from generate_series(1, %(count)s) as g) as one) as retries
"""

_STEPS = """
insert into transition (retry_id, round, state, at, actor, reason, detail)
select id, 1, step, first_failed_at + number * interval '10 minutes', 'router', error_reason,
       case step when 'scheduled' then jsonb_build_object('attempt', 1, 'delay_ms', 3600000)
                 when 'returned' then jsonb_build_object('drift_ms', 5) end
  from retry
 cross join lateral unnest(case state when 'succeeded' then array['claimed', 'scheduled', 'returned', 'succeeded']
                                      when 'returned' then array['claimed', 'scheduled', 'returned']
                                      when 'in_review' then array['claimed', 'in_review']
                                      else array['claimed', 'scheduled'] end) with ordinality as steps (step, number)
"""

ACTOR = "ops/seldom"
"""Has done 1 of 100,000 actions."""

_ACTIONS = """
insert into action (id, at, actor, kind, target, detail, outcome, finished_at, origin)
select gen_random_uuid(), at, case when g %% 100000 = 7 then %(actor)s else 'ops/person-' || g %% 50 end,
       (array['cancel', 'retry_now', 'pause', 'resume'])[1 + g %% 4],
       case when g %% 4 < 2 then id::text else queue end, jsonb_build_object('reason', 'INC-' || g %% 700),
       case when g %% 4 < 2 then jsonb_build_object('retry_id', id) else '{}' end, at, 'command'
  from (select id, queue, g, %(now)s::timestamptz - g * interval '2 seconds' as at
          from (select id, queue, row_number() over () as g from retry) as numbered) as acted
"""

_STARTS = """
insert into attempt_start (retry_id, round, started_at, seen_at, consumer)
select id, returned_round, returned_at, returned_at, 'worker-7'
  from retry where state = 'returned' and returned_at is not null and body is not null limit 10000
"""


def fill(dsn: str, count: int) -> None:
    """Also vacuums, so that indexes can be read alone, as autovacuum would see to."""
    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("set synchronous_commit = off")
        cursor.execute(_RETRIES, {"rare": RARE, "count": count, "now": datetime.now(UTC)})
        cursor.execute(_STEPS)
        cursor.execute("vacuum analyze retry")
        cursor.execute(_ACTIONS, {"actor": ACTOR, "now": datetime.now(UTC)})
        cursor.execute(_STARTS)
        for table in ("transition", "action", "attempt_start"):
            cursor.execute(f"vacuum analyze {table}".encode())


def a_retry(dsn: str, state: str) -> str:
    """The id of a retry in this state."""
    with psycopg.connect(dsn) as connection:
        ((found,),) = connection.execute("select id::text from retry where state = %s limit 1", [state]).fetchall()
    return str(found)
