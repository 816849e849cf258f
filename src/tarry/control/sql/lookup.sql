-- name: retries_by_id
-- A page of retries in the order of their ids: stable, whatever happens to them meanwhile.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
       left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body)
  from retry
 where id > %(after)s::uuid
   and (%(states)s::text[] is null or state = any(%(states)s))
   and (%(queue)s::text is null or queue = %(queue)s)
   and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
   and (%(message_id)s::text is null or message_id = %(message_id)s)
   and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
   and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
 order by retry.id
 limit %(limit)s;

-- name: retries_by_due
-- A page of what waits, the next to come due first. A later round is due later, so nothing is passed over.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
       left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body)
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and (%(after_due)s::timestamptz is null or (due_at, id) > (%(after_due)s, %(after)s::uuid))
   and (%(states)s::text[] is null or state = any(%(states)s))
   and (%(queue)s::text is null or queue = %(queue)s)
   and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
   and (%(message_id)s::text is null or message_id = %(message_id)s)
   and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
   and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
 order by retry.due_at, retry.id
 limit %(limit)s;

-- name: retry_called
-- One retry by its id, as `tarry history` shows it.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
       fingerprint, first_failed_at, due_at, returned_at, drift_ms, tier, octet_length(body)
  from retry
 where id = %(id)s::uuid;

-- name: latest_transitions
-- The timeline of one retry, the latest steps of a very long one.
select round, state, at, actor, reason, detail
  from (select * from transition where retry_id = %(id)s::uuid order by id desc limit %(limit)s) as latest
 order by id;

-- name: retry_payload
-- The message as it was stored.
select body, properties from retry where id = %(id)s::uuid;

-- name: latest_actions
-- Who did what, the latest first.
select id::text, at, actor, kind, target, detail, outcome, finished_at
  from action
 where (%(before_at)s::timestamptz is null or (at, id) < (%(before_at)s, %(before)s::uuid))
   and (%(actor)s::text is null or actor = %(actor)s)
   and (%(kind)s::text is null or kind = %(kind)s)
   and (%(target)s::text is null or target = %(target)s
        or (target between %(low)s::text and %(high)s::text and starts_with(target, %(begins)s::text)))
 order by action.at desc, action.id desc
 limit %(limit)s;
