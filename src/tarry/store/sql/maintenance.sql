-- name: lock_migrations
-- One migration at a time, across all processes.
select pg_advisory_xact_lock(%(number)s);

-- name: has_migrations
-- Whether this database has ever been migrated.
select to_regclass('tarry_migration') is not null;

-- name: migrations
-- The migrations that have been applied.
select name from tarry_migration;

-- name: add_migration
-- Record a migration as applied, so that it never runs again.
insert into tarry_migration (name) values (%(name)s);

-- name: add_partitions
-- Add partitions of the history for today and the week ahead; returns how many were new.
select count(*) filter (where tarry_add_partition((now() at time zone 'UTC')::date + ahead)) from generate_series(0, 7) as ahead;

-- name: presume_success
-- Retries without a new failure for the quiet time after their return count as succeeded, unless their consumer has
-- reported that it started: then only an outcome ends it. In slices, oldest first.
-- Returns them, with the time from the first failure to the return.
with quiet as (
    select id
      from retry
     where state = 'returned' and returned_at < statement_timestamp() - %(quiet)s::interval
       and not exists (select from attempt_start as start where start.retry_id = retry.id and start.round = retry.round)
     order by returned_at
     limit %(limit)s
       for update skip locked
),
moved as (
    update retry
       set state = 'succeeded', presumed = true, updated_at = clock_timestamp()
      from quiet
     where retry.id = quiet.id
 returning retry.id, retry.round, retry.queue, retry.message_id, retry.retry_count, retry.returned_at - retry.first_failed_at as took
),
noted as (
    insert into transition (retry_id, round, state, actor, reason)
    select id, round, 'succeeded', 'presumed', 'no new failure since its return' from moved
)
select id::text, round, queue, message_id, retry_count, greatest(0, (extract(epoch from took) * 1000)::bigint) from moved;

-- name: note_overdue
-- Note, once per round, that a retry should have returned by now and was not seen to.
insert into transition (retry_id, round, state, actor, detail)
select id, round, 'overdue', %(actor)s, jsonb_build_object('state', state, 'tier', tier)
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and due_at < statement_timestamp() - %(grace)s::interval
   and expected_at < statement_timestamp() - %(grace)s::interval
   and not (state = 'held' and tarry_is_paused(queue, exchange, policy, properties))
   and not exists (select from transition
                    where retry_id = retry.id and transition.round = retry.round and transition.state = 'overdue')
 limit 10000;

-- name: note_missing
-- Note, once per round, that nothing on the broker can contain this retry. One that has moved on meanwhile is left out.
insert into transition (retry_id, round, state, actor, detail)
select id, round, 'missing', %(actor)s, jsonb_build_object('state', state, 'tier', tier)
  from retry
  join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as given (id, round) using (id, round)
 where state in ('claimed', 'scheduled', 'held', 'unroutable')
   and not exists (select from transition
                    where retry_id = retry.id and transition.round = retry.round and transition.state = 'missing');

-- name: not_counted_for
-- How old the oldest steps are that the statistics may not have yet; no row if counting has not begun.
select clock_timestamp() - case when before_day is null then counted_until
                                else least(counted_until, oldest_day::timestamp at time zone 'UTC') end
  from statistic_position;

-- name: old_partitions
-- Partitions of days that ended longer ago than the given time.
select relname
  from pg_inherits
  join pg_class on pg_class.oid = inhrelid
 where inhparent = 'transition'::regclass
   and relname ~ '^transition_[0-9]{8}$'
   and (to_date(right(relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC'
       <= statement_timestamp() - %(older_than)s::interval
 order by relname;

-- name: drop_partition
-- Drop a partition; the history of retries that are still open is kept.
select tarry_drop_partition(%(name)s);

-- name: prune_history
-- Delete history that was kept when its partition was dropped, and whose retry is finished now. In slices.
delete from transition_default
 where ctid in (select transition_default.ctid
                  from transition_default
                  left join retry on retry.id = retry_id
                 where at < statement_timestamp() - %(older_than)s::interval
                   and (retry.id is null
                        or retry.state not in ('claimed', 'scheduled', 'held', 'unroutable', 'in_review'))
                 limit %(limit)s);

-- name: prune_payloads
-- Bodies and properties of finished retries, which need not be rebuilt any more; not of an attempt that may be stuck.
-- In slices.
update retry
   set body = null, properties = null
 where id in (select id
                from retry
               where ((state = 'returned' and returned_at < statement_timestamp() - %(older_than)s::interval)
                      or (state in ('succeeded', 'cancelled', 'discarded')
                          and updated_at < statement_timestamp() - %(older_than)s::interval)
                      or (state = 'skipped' and updated_at < statement_timestamp() - %(older_than)s::interval))
                 and (body is not null or properties is not null)
                 and not exists (select from attempt_start as start
                                  where start.retry_id = retry.id and start.round = retry.round)
               limit %(limit)s);

-- name: prune_retries
-- Rows of finished retries, in slices. Retries that are open or in review are kept, however old.
delete from retry
 where id in (select id
                from retry
               where (state = 'returned' and returned_at < statement_timestamp() - %(older_than)s::interval
                      and not exists (select from attempt_start as start
                                       where start.retry_id = retry.id and start.round = retry.round))
                  or (state in ('succeeded', 'cancelled', 'discarded')
                      and updated_at < statement_timestamp() - %(older_than)s::interval)
                  or (state = 'skipped' and updated_at < statement_timestamp() - %(older_than)s::interval)
               limit %(limit)s);

-- name: prune_actions
-- Operator actions as old as the history that is deleted, in slices.
delete from action
 where id in (select id from action where at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_diversions
-- Finished cancels and retry-nows, in slices.
delete from diversion
 where id in (select id from diversion where unbound_at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_pauses
-- Pauses that have ended, in slices.
delete from pause
 where id in (select id from pause where ended_at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_review_jobs
-- Finished jobs with their items, in slices. A job with unconfirmed items is kept until an operator has resolved them.
delete from review_job
 where id in (select id
                from review_job as job
               where finished_at < statement_timestamp() - %(older_than)s::interval
                 and not exists (select from review_item where job_id = job.id and state = 'unconfirmed')
               limit %(limit)s);

-- name: prune_review_edits
-- Originals of edited messages whose retry has been deleted, in slices.
delete from review_edit
 where id in (select id
                from review_edit as edit
               where at < statement_timestamp() - %(older_than)s::interval
                 and not exists (select from retry where retry.id = edit.retry_id)
               limit %(limit)s);

-- name: returned_lately
-- Recent returns, by the tier that they waited in and their queue.
select tier, queue, count(*)
  from retry
 where state = 'returned' and returned_at > statement_timestamp() - %(lately)s::interval
 group by tier, queue;

-- name: overdue_by_tier
-- Overdue retries, by tier and queue.
select tier, queue, count(*)
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and due_at < statement_timestamp() - %(grace)s::interval
   and expected_at < statement_timestamp() - %(grace)s::interval
   and not (state = 'held' and tarry_is_paused(queue, exchange, policy, properties))
 group by tier, queue;
