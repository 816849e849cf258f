-- name: retries_by_id
-- A page of retries in the order of their ids: stable, whatever changes in the meantime.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
       left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body),
       owner, job_type, priority
  from retry
 where id > %(after)s::uuid
   and (%(states)s::text[] is null or state = any(%(states)s))
   and (%(queue)s::text is null or queue = %(queue)s)
   and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
   and (%(message_id)s::text is null or message_id = %(message_id)s)
   and (%(owner)s::text is null or owner = %(owner)s)
   and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
   and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 order by retry.id
 limit %(limit)s;

-- name: retries_searched_by_id
-- The same by policy and error, for which there is no index: searches a part of the retries, and says with each row where
-- that part ends and how many it has. One row without an id if nothing matches.
with searched as materialized (
    select id, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
           fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body) as size, owner, job_type,
           priority
      from retry
     where id > %(after)s::uuid
       and (%(states)s::text[] is null or state = any(%(states)s))
       and (%(queue)s::text is null or queue = %(queue)s)
       and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
       and (%(message_id)s::text is null or message_id = %(message_id)s)
       and (%(owner)s::text is null or owner = %(owner)s)
       and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
       and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
       and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
     order by retry.id
     limit %(part)s
),
found as (
    select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
           left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, size, owner,
           job_type, priority
      from searched
     where (%(policy)s::text is null or policy = %(policy)s)
       and (%(error)s::text is null or error_type = %(error)s or error_reason ilike %(error_like)s)
     order by searched.id
     limit %(limit)s
)
select found.*, null::timestamptz, part.last, part.size
  from (select max(id::text) as last, count(*) as size from searched) as part
  left join found on true
 order by found.id;

-- name: retries_by_due
-- A page of waiting retries, the next due first. A later round is due later, so paging skips nothing.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
       left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body),
       owner, job_type, priority
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and (%(after_due)s::timestamptz is null or (due_at, id) > (%(after_due)s, %(after)s::uuid))
   and (%(states)s::text[] is null or state = any(%(states)s))
   and (%(queue)s::text is null or queue = %(queue)s)
   and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
   and (%(message_id)s::text is null or message_id = %(message_id)s)
   and (%(owner)s::text is null or owner = %(owner)s)
   and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
   and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 order by retry.due_at, retry.id
 limit %(limit)s;

-- name: retries_searched_by_due
-- The same by policy and error, a part of the waiting retries at a time.
with searched as materialized (
    select id, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
           fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, octet_length(body) as size, owner, job_type,
           priority
      from retry
     where state in ('scheduled', 'held', 'unroutable')
       and (%(after_due)s::timestamptz is null or (due_at, id) > (%(after_due)s, %(after)s::uuid))
       and (%(states)s::text[] is null or state = any(%(states)s))
       and (%(queue)s::text is null or queue = %(queue)s)
       and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
       and (%(message_id)s::text is null or message_id = %(message_id)s)
       and (%(owner)s::text is null or owner = %(owner)s)
       and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
       and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
       and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
     order by retry.due_at, retry.id
     limit %(part)s
),
found as (
    select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type,
           left(error_reason, 200), fingerprint, tier, first_failed_at, due_at, returned_at, drift_ms, size, owner,
           job_type, priority
      from searched
     where (%(policy)s::text is null or policy = %(policy)s)
       and (%(error)s::text is null or error_type = %(error)s or error_reason ilike %(error_like)s)
     order by searched.due_at, searched.id
     limit %(limit)s
)
select found.*, part.last_due, part.last, part.size
  from (select (array_agg(due_at order by due_at desc, id desc))[1] as last_due,
               (array_agg(id::text order by due_at desc, id desc))[1] as last, count(*) as size
          from searched) as part
  left join found on true
 order by found.due_at, found.id;

-- name: retry_payload
-- The message as it was stored.
select body, properties from retry where id = %(id)s::uuid;

-- name: latest_actions
-- Operator actions, the latest first.
select id::text, at, actor, kind, target, detail, outcome, finished_at, origin
  from action
 where (%(before_at)s::timestamptz is null or (at, id) < (%(before_at)s, %(before)s::uuid))
   and (%(actor)s::text is null or actor = %(actor)s)
   and (%(kind)s::text is null or kind = %(kind)s)
   and (%(target)s::text is null or target = %(target)s
        or (target between %(low)s::text and %(high)s::text and starts_with(target, %(begins)s::text)))
   and (%(scope)s::text[] is null
        or (kind in ('pause', 'resume', 'retry_error', 'judge_error', 'error_given_up', 'error_retried')
            and target like any(%(scope)s::text[]))
        or exists (select from retry
                    where retry.id = case when kind in ('cancel', 'retry_now') then (outcome ->> 'retry_id')::uuid end
                      and retry.queue like any(%(scope)s::text[])))
 order by action.at desc, action.id desc
 limit %(limit)s;

-- name: retries_in_scope
-- Retries of some queues with this id, this message id, or this beginning of an id. A message id takes precedence over
-- the beginning of an id, as everywhere.
select id::text, queue, state, message_id is not distinct from %(called)s
  from retry
 where queue like any(%(scope)s::text[])
   and (id = %(id)s::uuid
        or message_id = %(called)s
        or (id between %(low)s::uuid and %(high)s::uuid
            and not exists (select from retry as named
                             where named.message_id = %(called)s and named.queue like any(%(scope)s::text[]))))
 order by first_failed_at, id
 limit %(limit)s;

-- name: fingerprints_in_scope
-- Fingerprints that begin with a prefix, of errors in some queues, with the type of one such error.
select fingerprint, min(error_type)
  from retry
 where fingerprint between %(low)s and %(high)s and queue like any(%(scope)s::text[])
 group by fingerprint
 order by fingerprint
 limit %(limit)s;

-- name: counts_in_scope
-- The numbers of `counts`, for some queues.
select count(*) filter (where state = 'scheduled'),
       count(*) filter (where state = 'scheduled' and due_at <= statement_timestamp() + interval '1 minute'),
       count(*) filter (where state = 'scheduled' and due_at <= statement_timestamp() + interval '1 hour'),
       count(*) filter (where state = 'in_review'), count(*) filter (where state = 'held'),
       count(*) filter (where state = 'unroutable'), count(*) filter (where state = 'claimed'),
       count(*) filter (where state in ('scheduled', 'held', 'unroutable')
                          and due_at < statement_timestamp() - %(grace)s::interval
                          and expected_at < statement_timestamp() - %(grace)s::interval
                          and not (state = 'held' and tarry_is_paused(queue, exchange, policy, properties))),
       count(*) filter (where state in ('scheduled', 'held', 'unroutable') and due_at <= statement_timestamp()),
       count(*) filter (where state = 'skipped')
  from retry
 where (state in ('scheduled', 'in_review', 'held', 'unroutable', 'claimed')
        or (state = 'skipped' and updated_at > statement_timestamp() - interval '1 day'))
   and queue like any(%(scope)s::text[]);
