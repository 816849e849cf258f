-- name: review_page
-- A page of what the store has in review, oldest first, starting after the cursor.
select id::text, message_id, queue, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
       fingerprint, reason, since, first_failed_at, size, owner
  from tarry_in_review(%(queue)s, %(reason)s, %(fingerprint)s, %(error_type)s, %(before)s, %(after)s, %(ids)s::uuid[])
 where (%(cursor_at)s::timestamptz is null or (since, id) > (%(cursor_at)s, %(cursor_id)s::uuid))
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
   and (%(owner)s::text is null or owner = %(owner)s)
 order by since, id
 limit %(limit)s;

-- name: review_count
-- How many messages the same selection has.
select count(*)
  from tarry_in_review(%(queue)s, %(reason)s, %(fingerprint)s, %(error_type)s, %(before)s, %(after)s, %(ids)s::uuid[])
 where (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
   and (%(owner)s::text is null or owner = %(owner)s);

-- name: review_groups
-- The same selection, grouped by one attribute: the largest group first, each with its oldest message as an example and
-- with numbers by the hour in which its messages came: 0 is the last hour, 24 all before the last day. By fingerprint,
-- queue, owner or age, an index has everything that is counted. Numbers in a reason do not tell groups apart: they are
-- replaced once for each reason, and not for each message.
with rows as (
    select tarry_review_group(%(by)s, queue, reason, fingerprint, owner, since) as key, queue,
           least(24, floor(date_part('epoch', statement_timestamp() - since) / 3600))::int as hour,
           count(*) as number, min(since) as oldest, max(since) as newest
      from tarry_in_review(%(queue)s, %(reason)s, %(fingerprint)s, %(error_type)s, %(before)s, %(after)s, %(ids)s::uuid[])
     where (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
       and (%(owner)s::text is null or owner = %(owner)s)
     group by 1, 2, 3
),
counted as materialized (
    select case when %(by)s = 'reason' then regexp_replace(key, '\d+', '#', 'g') else key end as key, queue, hour, number,
           oldest, newest
      from rows
),
found as materialized (
    select key, sum(number)::bigint as number, min(oldest) as oldest, max(newest) as newest,
           count(distinct queue) as queues, min(queue) as queue
      from counted
     group by key
     order by 2 desc, 1
     limit %(limit)s
),
parts as (
    select key, hour, sum(number)::int as number from counted where key in (select key from found) group by key, hour
),
hours as (
    select found.key, array_agg(coalesce(parts.number, 0) order by hour desc) as numbers
      from found
     cross join generate_series(0, 24) as hour
      left join parts using (key, hour)
     group by found.key
)
select found.key, found.number, found.oldest, found.newest, queues, found.queue, example.error_type,
       example.error_reason, example.reason, hours.numbers
  from found
  join hours using (key)
  left join lateral (select error_type, error_reason, reason
                       from in_review
                      where since = found.oldest
                        and case when %(by)s = 'reason' then regexp_replace(coalesce(reason, ''), '\d+', '#', 'g')
                                 else tarry_review_group(%(by)s, in_review.queue, reason, fingerprint, owner, since)
                            end = found.key
                        and (%(scope)s::text[] is null or in_review.queue like any(%(scope)s::text[]))
                      limit 1) as example on true
 order by found.number desc, found.key;

-- name: review_ids
-- Retries with this message id or retry id, and their state.
select id::text, message_id, queue, state, round
  from retry
 where message_id = %(called)s or id = %(id)s::uuid
 order by (state = 'in_review') desc, first_failed_at;

-- name: review_one
-- One retry with its payload.
select body, properties, exchange, routing_key from retry where id = %(id)s;

-- name: review_job_of
-- The job that is processing this retry, if any.
select job_id::text, state from review_item where retry_id = %(id)s and state in ('waiting', 'sending', 'unconfirmed');

-- name: review_edits_of
-- The edits of this retry, with the originals.
select id::text, round, job_id::text, at, actor, changes, body, properties from review_edit where retry_id = %(id)s order by at;

-- name: review_patience
-- Timeout for the rest of this transaction: selecting a million messages takes long.
select set_config('statement_timeout', '120s', true);

-- name: review_new_job
-- Create a job, without its selection yet. A job that the caller runs itself is not offered to the service for the
-- first seconds.
insert into review_job (id, kind, actor, filter, options, body, rate, reason, wanted, seen_at)
values (%(job)s, %(kind)s, %(actor)s, %(filter)s, %(options)s, %(body)s, %(rate)s, %(why)s, %(wanted)s,
        case when %(here)s then clock_timestamp() end);

-- name: review_freeze
-- Fix the selection of the job. Messages that another job is processing are left to that job. Returns how many were
-- selected and how many were taken.
with chosen as (
    select id, round
      from tarry_in_review(%(queue)s, %(reason)s, %(fingerprint)s, %(error_type)s, %(before)s, %(after)s, %(ids)s::uuid[])
     where (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
       and (%(owner)s::text is null or owner = %(owner)s)
     order by since, id
     limit %(limit)s
),
taken as (
    insert into review_item (job_id, retry_id, round)
    select %(job)s, id, round from chosen
        on conflict do nothing
 returning retry_id
),
counted as (update review_job set total = (select count(*) from taken) where id = %(job)s)
select (select count(*) from chosen), (select count(*) from taken);

-- name: review_freeze_retries
-- The same for a selection of retries, in the states in which the job can do something to them.
with chosen as (
    select id, round
      from retry
     where state = any(%(states)s)
       and (%(queue)s::text is null or queue = %(queue)s)
       and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
       and (%(message_id)s::text is null or message_id = %(message_id)s)
       and (%(owner)s::text is null or owner = %(owner)s)
       and (%(policy)s::text is null or policy = %(policy)s)
       and (%(error)s::text is null or error_type = %(error)s or error_reason ilike %(error_like)s)
       and (%(due_after)s::timestamptz is null or due_at >= %(due_after)s)
       and (%(due_before)s::timestamptz is null or due_at < %(due_before)s)
       and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
     order by id
     limit %(limit)s
),
taken as (
    insert into review_item (job_id, retry_id, round)
    select %(job)s, id, round from chosen
        on conflict do nothing
 returning retry_id
),
counted as (update review_job set total = (select count(*) from taken) where id = %(job)s)
select (select count(*) from chosen), (select count(*) from taken);

-- name: review_only_prepare
-- The job waits until an operator starts it.
update review_job set wanted = 'stop', problem = %(problem)s where id = %(job)s;

-- name: review_end_prepared
-- End jobs that were prepared long ago and never started, so that other jobs can have their messages.
with ended as (
    update review_job
       set finished_at = clock_timestamp(), problem = 'it was prepared, and not started in time'
     where finished_at is null and wanted = 'stop' and runs = 0 and runner is null
       and created_at < clock_timestamp() - %(within)s::interval
 returning id
)
update review_item set state = 'skipped', problem = 'the job was not started in time'
 where job_id in (select id from ended) and state = 'waiting';

-- name: review_failures
-- Of the items that this run of the job has processed: how many there are, and how many failed, or were sent and failed
-- again. A retry-now returns in the next round, a redrive in the same one.
select count(*)::int,
       count(*) filter (where item.state = 'failed'
                           or (item.state = 'done' and job.kind in ('redrive', 'retry_now')
                               and (live.round > item.round + (job.kind = 'retry_now')::int
                                    or (live.state = 'in_review'
                                        and live.round >= item.round + (job.kind = 'retry_now')::int))))::int
  from review_job as job
  join review_item as item on item.job_id = job.id
  left join retry as live on live.id = item.retry_id
 where job.id = %(job)s and item.at >= job.run_since and item.state in ('done', 'failed');

-- name: review_no_longer_waiting
-- Waiting items of a job on retries that do not wait any more.
update review_item as item
   set state = 'skipped', at = clock_timestamp(),
       problem = 'does not wait any more: ' || coalesce(live.state || ' in round ' || live.round, 'not known')
  from review_item as mine
  left join retry as live on live.id = mine.retry_id
 where mine.job_id = %(job)s and mine.state = 'waiting'
   and (live.id is null or live.round <> mine.round or live.state not in ('scheduled', 'held'))
   and item.job_id = mine.job_id and item.retry_id = mine.retry_id;

-- name: review_next_items
-- The next waiting items, those that are due last at the end: what is due soon can still be caught.
select item.retry_id::text, item.round
  from review_item as item
  join retry on retry.id = item.retry_id
 where item.job_id = %(job)s and item.state = 'waiting'
 order by retry.due_at, item.retry_id
 limit %(limit)s;

-- name: review_take_items
-- Mark items before anything is done to their retries, while the job is to continue.
update review_item as item
   set state = 'sending', at = clock_timestamp()
  from review_job as job
 where job.id = %(job)s and job.wanted = 'run'
   and item.job_id = job.id and item.retry_id = any(%(ids)s::uuid[]) and item.state = 'waiting'
returning item.retry_id::text;

-- name: review_untake_items
-- Nothing was done to these.
update review_item set state = 'waiting', at = clock_timestamp()
 where job_id = %(job)s and retry_id = any(%(ids)s::uuid[]) and state = 'sending';

-- name: review_diverted
-- What became of the items that a run was interrupted at: the verdict of what it had requested, or no row's verdict.
select item.retry_id::text, asked.id is not null, asked.verdict
  from review_item as item
  join review_job as job on job.id = item.job_id
  left join lateral (select id, verdict
                       from diversion
                      where diversion.retry_id = item.retry_id and diversion.round = item.round
                        and diversion.kind = job.kind and diversion.asked_at >= job.created_at
                      order by asked_at desc
                      limit 1) as asked on true
 where item.job_id = %(job)s and item.state = 'sending';

-- name: review_drop_job
-- Delete a job that selected nothing.
delete from review_job where id = %(job)s;

-- name: review_jobs
-- Jobs with their progress, newest first; with an id, only that job.
select job.id::text, job.kind, job.actor, job.created_at, job.filter, job.options, job.body is not null, job.rate, job.reason, job.total,
       job.wanted, job.runner, coalesce(job.seen_at > clock_timestamp() - interval '5 seconds', false), job.started_at,
       job.run_since, job.run_settled, job.runs, job.problem, job.finished_at, clock_timestamp(),
       coalesce(items.waiting, 0), coalesce(items.sending, 0), coalesce(items.done, 0), coalesce(items.gone, 0),
       coalesce(items.failed, 0), coalesce(items.unconfirmed, 0), coalesce(items.skipped, 0)
  from review_job as job
  left join lateral (
       select count(*) filter (where state = 'waiting')  as waiting,  count(*) filter (where state = 'sending') as sending,
              count(*) filter (where state = 'done')     as done,     count(*) filter (where state = 'gone')    as gone,
              count(*) filter (where state = 'failed')   as failed,   count(*) filter (where state = 'unconfirmed') as unconfirmed,
              count(*) filter (where state = 'skipped')  as skipped
         from review_item
        where job_id = job.id) as items on true
 where (%(job)s::uuid is null or job.id = %(job)s) and (not %(only_open)s or job.finished_at is null)
 order by job.created_at desc
 limit %(limit)s;

-- name: jobs_beginning
-- Jobs whose ids begin with a prefix.
select id::text, kind || ' by ' || actor
  from review_job
 where id between %(low)s::uuid and %(high)s::uuid
 order by id
 limit %(limit)s;

-- name: review_job_body
-- The edited payload.
select body from review_job where id = %(job)s;

-- name: review_problems
-- The items that did not succeed, as single rows.
select retry_id::text, round, state, problem
  from review_item
 where job_id = %(job)s and state in ('gone', 'failed', 'unconfirmed', 'skipped')
 order by state, retry_id
 limit %(limit)s;

-- name: review_begin
-- A runner starts to work on the job.
update review_job
   set runner = %(runner)s, seen_at = clock_timestamp(), started_at = coalesce(started_at, clock_timestamp()),
       run_since = clock_timestamp(), runs = runs + 1, problem = null,
       run_settled = (select count(*) from review_item where job_id = %(job)s and state not in ('waiting', 'sending'))
 where id = %(job)s and finished_at is null
returning runs;

-- name: review_seen
-- Heartbeat of the runner; returns whether the job is to continue.
update review_job set seen_at = clock_timestamp() where id = %(job)s returning wanted = 'run';

-- name: review_leave
-- The runner stops working on the job, which is finished if nothing is left to do.
update review_job
   set runner = null, seen_at = null, problem = %(problem)s,
       finished_at = case when exists (select from review_item where job_id = %(job)s and state in ('waiting', 'sending'))
                          then null else clock_timestamp() end
 where id = %(job)s;

-- name: review_want
-- Request that the job continues or stops. A finished job can continue only if it has unconfirmed or open items.
update review_job
   set wanted = %(wanted)s, seen_at = case when %(here)s then clock_timestamp() else seen_at end,
       finished_at = case when %(wanted)s = 'run' then null else finished_at end
 where id = %(job)s
   and (finished_at is null
        or (%(wanted)s = 'run' and exists (select from review_item where job_id = %(job)s and state in ('unconfirmed', 'waiting', 'sending'))))
returning id;

-- name: review_reopen
-- Check the unconfirmed items once more.
update review_item set state = 'sending', problem = null where job_id = %(job)s and state = 'unconfirmed';

-- name: review_resend_unconfirmed
-- An operator has decided that these unconfirmed items were not sent: they are in review again, and wait.
with unconfirmed as (
    update review_item set state = 'waiting', problem = null where job_id = %(job)s and state in ('unconfirmed', 'sending')
 returning retry_id, round
),
back as (
    update retry as live
       set state = 'in_review', updated_at = clock_timestamp()
      from unconfirmed
     where live.id = unconfirmed.retry_id and live.round = unconfirmed.round and live.state in ('scheduled', 'held')
 returning live.id, live.round, live.policy, live.error_class, live.fingerprint, live.owner
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, 'in_review', %(actor)s, 'taken for not sent, by a person', tarry_about(policy, error_class, fingerprint, null, owner)
  from back;

-- name: review_end
-- Abandon the job: its remaining items are skipped.
with ended as (update review_job set wanted = 'stop', finished_at = clock_timestamp() where id = %(job)s and finished_at is null returning id)
update review_item set state = 'skipped', problem = 'the job was abandoned'
 where job_id in (select id from ended) and state = 'waiting';

-- name: review_to_run
-- Jobs that wait for a runner, oldest first.
select id::text
  from review_job
 where finished_at is null and wanted = 'run'
   and (seen_at is null or seen_at < clock_timestamp() - interval '5 seconds')
 order by created_at
 limit %(limit)s;

-- name: review_open_items
-- The open items of a job: ids, rounds and states. With `all` also the done items, which may still be in the queue.
select retry_id::text, round, state
  from review_item
 where job_id = %(job)s and (state in ('waiting', 'sending') or (%(all)s and state = 'done'));

-- name: review_moved_on
-- Waiting items that are no longer in review according to the store: another action, or a new failure, came first.
update review_item as item
   set state = 'skipped', at = clock_timestamp(), problem = 'no longer in review: ' || coalesce(live.state || ' in round ' || live.round, 'not known')
  from review_item as mine
  left join retry as live on live.id = mine.retry_id
 where mine.job_id = %(job)s and mine.state = 'waiting'
   and (live.id is null or live.round <> mine.round or live.state <> 'in_review')
   and item.job_id = mine.job_id and item.retry_id = mine.retry_id;

-- name: review_keep_originals
-- Store the originals of messages that are about to be edited.
insert into review_edit (retry_id, round, job_id, actor, changes, body, properties)
select id, round, %(job)s, %(actor)s, %(changes)s, body, properties
  from unnest(%(ids)s::uuid[], %(rounds)s::int[], %(bodies)s::bytea[], %(properties)s::bytea[]) as e (id, round, body, properties);

-- name: review_sending
-- Marks items before they are sent, so that a crash in between can be detected. Only what the store has in review, and
-- only while the job is to continue. The return is expected at the due time; until the broker has confirmed the
-- message, ten minutes later, which gives the runner that resumes the job time to find out whether it was sent.
with given as (
    select *
      from unnest(%(ids)s::uuid[], %(rounds)s::int[], %(queues)s::text[], %(counts)s::int[], %(tiers)s::text[],
                  %(delay_ms)s::bigint[], %(due_ms)s::bigint[], %(bodies)s::bytea[], %(properties)s::bytea[])
           as g (id, round, queue, retry_count, tier, delay_ms, due_ms, body, properties)
),
live as (
    select retry.id
      from retry
      join given using (id, round)
      join review_item as item on item.retry_id = retry.id and item.round = retry.round
      join review_job as job on job.id = item.job_id
     where retry.state = 'in_review' and item.job_id = %(job)s and item.state = 'waiting' and job.wanted = 'run'
     order by retry.id
       for update of retry, item
),
marked as (
    update review_item as item
       set state = 'sending', at = clock_timestamp(), due_at = to_timestamp(given.due_ms / 1000.0)
      from given
      join live using (id)
     where item.job_id = %(job)s and item.retry_id = given.id
),
moved as (
    update retry
       set state           = 'scheduled',
           queue           = given.queue,
           retry_count     = given.retry_count,
           first_failed_at = case when %(reset_attempts)s then clock_timestamp() else retry.first_failed_at end,
           returned_round  = least(retry.returned_round, retry.round - 1),
           manual_round    = retry.round,
           tier            = given.tier,
           delay_ms        = given.delay_ms,
           entered_at      = clock_timestamp(),
           due_at          = to_timestamp(given.due_ms / 1000.0),
           expected_at     = to_timestamp(given.due_ms / 1000.0) + interval '10 minutes',
           returned_at     = null,
           drift_ms        = null,
           body            = case when retry.body is null then null else coalesce(given.body, retry.body) end,
           properties      = case when retry.properties is null then null else given.properties end,
           updated_at      = clock_timestamp()
      from given
      join live using (id)
     where retry.id = given.id
 returning retry.id, retry.round, given.due_ms, given.delay_ms, given.tier, given.retry_count, retry.policy,
           retry.error_class, retry.fingerprint, retry.owner
),
noted as (
    insert into transition (retry_id, round, state, actor, reason, detail)
    select id, round, 'scheduled', %(actor)s, %(why)s,
           jsonb_build_object('due_ms', due_ms, 'delay_ms', delay_ms, 'tier', tier, 'attempt', retry_count, 'job', %(job)s::text)
           || %(about)s::jsonb || tarry_about(policy, error_class, fingerprint, null, owner)
      from moved
)
select id::text from moved;

-- name: review_sent
-- The broker has confirmed these messages.
with done as (
    update review_item set state = 'done', at = clock_timestamp(), problem = null
     where job_id = %(job)s and retry_id = any(%(ids)s::uuid[]) and state in ('sending', 'unconfirmed')
 returning retry_id, round
)
update retry as live
   set expected_at = live.due_at
  from done
 where live.id = done.retry_id and live.round = done.round and live.state = 'scheduled';

-- name: review_unsent
-- These were not sent: they are in review as before, and either wait or have failed for the given reason.
with given as (
    select * from unnest(%(ids)s::uuid[], %(problems)s::text[], %(queues)s::text[], %(counts)s::int[])
                  as g (id, problem, queue, retry_count)
),
unsent as (
    update review_item as item
       set state = case when given.problem is null then 'waiting' else 'failed' end, at = clock_timestamp(), problem = given.problem
      from given
     where item.job_id = %(job)s and item.retry_id = given.id and item.state in ('waiting', 'sending')
 returning given.*, item.round
),
back as (
    update retry as live
       set state = 'in_review', queue = unsent.queue, retry_count = unsent.retry_count, due_at = null, expected_at = null,
           updated_at = clock_timestamp()
      from unsent
     where live.id = unsent.id and live.round = unsent.round and live.state in ('scheduled', 'held')
 returning live.id, live.round, unsent.problem, live.policy, live.error_class, live.fingerprint, live.owner
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, 'in_review', %(actor)s, coalesce(problem, 'it was not sent'), tarry_about(policy, error_class, fingerprint, null, owner)
  from back;

-- name: review_evidence
-- What the store has recorded for these items since they were marked: whether they returned, or began another round.
select item.retry_id::text, live.state, live.round, item.round, live.returned_round,
       item.at < clock_timestamp() - %(settle)s::interval and item.due_at < clock_timestamp() - %(settle)s::interval as settled,
       item.due_at < clock_timestamp() - %(patience)s::interval and item.at < clock_timestamp() - %(patience)s::interval as late,
       live.queue, live.exchange
  from review_item as item
  left join retry as live on live.id = item.retry_id
 where item.job_id = %(job)s and item.retry_id = any(%(ids)s::uuid[]) and item.state = 'sending';

-- name: review_close_items
-- Set the final state of these items.
update review_item set state = %(state)s, at = clock_timestamp(), problem = %(problem)s
 where job_id = %(job)s and retry_id = any(%(ids)s::uuid[]) and state in ('waiting', 'sending');

-- name: review_discarding
-- Discard these messages, with the reason. Written to the store before they leave the queue, so that none disappears
-- without a record.
with live as (
    select retry.id, retry.round
      from retry
      join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as given (id, round) using (id, round)
      join review_item as item on item.retry_id = retry.id and item.round = retry.round
      join review_job as job on job.id = item.job_id
     where retry.state = 'in_review' and item.job_id = %(job)s and item.state = 'waiting' and job.wanted = 'run'
     order by retry.id
       for update of retry, item
),
marked as (
    update review_item as item set state = 'done', at = clock_timestamp()
      from live
     where item.job_id = %(job)s and item.retry_id = live.id
),
moved as (
    update retry set state = 'discarded', updated_at = clock_timestamp()
      from live
     where retry.id = live.id
),
noted as (
    insert into transition (retry_id, round, state, actor, reason, detail)
    select id, round, 'discarded', %(actor)s, %(why)s, jsonb_build_object('job', %(job)s::text) from live
)
select id::text from live;

-- name: review_known
-- The state of these retries in the store.
select id::text, round, state from retry where id = any(%(ids)s::uuid[]);

-- name: review_in_work
-- Items that a job is processing now.
select retry_id::text, round from review_item where state in ('waiting', 'sending', 'unconfirmed');

-- name: review_all_keys
-- Everything that the store has in review, in slices.
select id::text, round from retry where state = 'in_review' and id > %(after)s order by id limit %(limit)s;

-- name: review_settled_keys
-- Those of these retries that are still in review, and have been since before the given time.
select id::text, round from retry where id = any(%(ids)s::uuid[]) and state = 'in_review' and updated_at < %(before)s;

-- name: review_left_over
-- Those of these retries that a job has redriven or discarded in exactly this round.
select item.retry_id::text, item.round
  from review_item as item
  join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as given (id, round) on given.id = item.retry_id and given.round = item.round
 where item.state = 'done';

-- name: review_close_gone
-- In review according to the store, but not in the queue: close these retries.
with closed as (
    update retry
       set state = 'discarded', updated_at = clock_timestamp()
      from unnest(%(ids)s::uuid[], %(rounds)s::int[]) as given (id, round)
     where retry.id = given.id and retry.round = given.round and retry.state = 'in_review'
 returning retry.id, retry.round
),
noted as (
    insert into transition (retry_id, round, state, actor, reason)
    select id, round, 'discarded', %(actor)s, %(why)s from closed
)
select id::text from closed;
