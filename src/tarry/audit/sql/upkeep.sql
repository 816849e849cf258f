-- name: lock_migrations
-- One migration at a time, whoever runs it.
select pg_advisory_xact_lock(7312001);

-- name: has_migrations
-- Whether this database has ever been migrated.
select to_regclass('tarry_migration') is not null;

-- name: migrations
-- What has been applied.
select name from tarry_migration;

-- name: add_migration
-- Never again.
insert into tarry_migration (name) values (%(name)s);

-- name: add_partitions
-- Partitions of the history for today and the week ahead; how many were new.
select count(*) filter (where tarry_add_partition((now() at time zone 'UTC')::date + ahead)) from generate_series(0, 7) as ahead;

-- name: lock_upkeep
-- One upkeep at a time, for as long as this connection lives; false if somebody else does it.
select pg_try_advisory_lock(7312002);

-- name: lock_recover
-- One recovery at a time, for as long as this connection lives; false if somebody else does.
select pg_try_advisory_lock(7312003);

-- name: presume_success
-- No new failure for the quiet time after its return: it is taken for done. In slices, oldest first.
with quiet as (
    select id
      from retry
     where state = 'returned' and returned_at < statement_timestamp() - %(quiet)s::interval
     order by returned_at
     limit %(limit)s
       for update skip locked
),
moved as (
    update retry
       set state = 'succeeded', updated_at = clock_timestamp()
      from quiet
     where retry.id = quiet.id
 returning retry.id, retry.round
)
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'succeeded', 'presumed', 'no new failure since its return' from moved;

-- name: note_overdue
-- Once for each round: it should have returned by now and was not seen to.
insert into transition (retry_id, round, state, actor, detail)
select id, round, 'overdue', %(actor)s, jsonb_build_object('state', state, 'tier', tier)
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and due_at < statement_timestamp() - %(grace)s::interval
   and expected_at < statement_timestamp() - %(grace)s::interval
   and not (state = 'held' and tarry_on_hold(queue, exchange, properties))
   and not exists (select from transition
                    where retry_id = retry.id and transition.round = retry.round and transition.state = 'overdue')
 limit 10000;

-- name: old_partitions
-- Days of history that are over by more than the given time.
select relname
  from pg_inherits
  join pg_class on pg_class.oid = inhrelid
 where inhparent = 'transition'::regclass
   and relname ~ '^transition_[0-9]{8}$'
   and (to_date(right(relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC'
       <= statement_timestamp() - %(older_than)s::interval
 order by relname;

-- name: drop_partition
-- With all its history but that of what is still open.
select tarry_drop_partition(%(name)s);

-- name: prune_history
-- What had outlived its partition and is over now, in slices.
delete from transition_default
 where ctid in (select transition_default.ctid
                  from transition_default
                  left join retry on retry.id = retry_id
                 where at < statement_timestamp() - %(older_than)s::interval
                   and (retry.id is null
                        or retry.state not in ('claimed', 'scheduled', 'held', 'unroutable', 'in_review'))
                 limit %(limit)s);

-- name: prune_payloads
-- Bodies and properties of what is over: nobody has to rebuild it any more. In slices.
update retry
   set body = null, properties = null
 where id in (select id
                from retry
               where ((state = 'returned' and returned_at < statement_timestamp() - %(older_than)s::interval)
                      or (state in ('succeeded', 'cancelled', 'discarded')
                          and updated_at < statement_timestamp() - %(older_than)s::interval))
                 and (body is not null or properties is not null)
               limit %(limit)s);

-- name: prune_retries
-- Rows of what is over, in slices. What is open or in review stays, however old.
delete from retry
 where id in (select id
                from retry
               where (state = 'returned' and returned_at < statement_timestamp() - %(older_than)s::interval)
                  or (state in ('succeeded', 'cancelled', 'discarded')
                      and updated_at < statement_timestamp() - %(older_than)s::interval)
               limit %(limit)s);

-- name: prune_actions
-- Who did what, as long ago as the history that goes; in slices.
delete from action
 where id in (select id from action where at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_diversions
-- Cancels and retry-nows that are over, in slices.
delete from diversion
 where id in (select id from diversion where unbound_at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_pauses
-- Pauses that are over, in slices.
delete from pause
 where id in (select id from pause where ended_at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_review_jobs
-- Jobs that are over, with their items, in slices; one in doubt stays until somebody has looked at it.
delete from review_job
 where id in (select id
                from review_job as job
               where finished_at < statement_timestamp() - %(older_than)s::interval
                 and not exists (select from review_item where job_id = job.id and state = 'in_doubt')
               limit %(limit)s);

-- name: prune_review_edits
-- Originals of edited messages whose retry is gone, in slices.
delete from review_edit
 where id in (select id
                from review_edit as edit
               where at < statement_timestamp() - %(older_than)s::interval
                 and not exists (select from retry where retry.id = edit.retry_id)
               limit %(limit)s);

-- name: returned_lately
-- What came back of late, by the tier it waited in and the queue it went to.
select tier, queue, count(*)
  from retry
 where state = 'returned' and returned_at > statement_timestamp() - %(lately)s::interval
 group by tier, queue;

-- name: overdue_by_tier
-- For whom each tier owes something.
select tier, queue, count(*)
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and due_at < statement_timestamp() - %(grace)s::interval
   and expected_at < statement_timestamp() - %(grace)s::interval
   and not (state = 'held' and tarry_on_hold(queue, exchange, properties))
 group by tier, queue;
