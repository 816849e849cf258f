-- name: configure_events
-- Settings for the connection that publishes events. If its machine disappears, the lock is free within seconds. The
-- plans do not depend on the parameters, and planning for all partitions takes longer than reading a few rows.
select set_config('tcp_keepalives_idle', '3', false),
       set_config('tcp_keepalives_interval', '1', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('tcp_user_timeout', '6000', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('jit', 'off', false);

-- name: event_bound
-- Every transaction before this one is over: its rows are visible from now on, or never. With the time, and the id that
-- the next transaction gets.
select pg_snapshot_xmin(pg_current_snapshot())::text, pg_snapshot_xmax(pg_current_snapshot())::text, clock_timestamp();

-- name: event_position
-- How far events have been published, and which cluster this is.
select cluster.system_identifier, position.system_identifier, transition_xid::text, action_xid::text, last_id, since_id,
       since_at, updated_at
  from pg_control_system() as cluster
  left join event_position as position on true;

-- name: begin_events
-- The first start: events begin with what is written from now on.
insert into event_position (system_identifier, transition_xid, action_xid, last_id)
select cluster.system_identifier, bound.xid, bound.xid, 0
  from pg_control_system() as cluster,
       (select ((pg_snapshot_xmin(pg_current_snapshot())::text)::numeric - 1)::text::xid8 as xid) as bound
    on conflict do nothing;

-- name: event_cut
-- Where the numbering of this cluster begins, after a restore.
select id, (xid::text::numeric - 1)::text, at from tarry_event_cut();

-- name: events_begin_again
-- After a restore: what was written before the cut has been published, and what follows is read by this cluster's ids.
update event_position
   set system_identifier = (select system_identifier from pg_control_system()),
       transition_xid = %(xid)s::text::xid8,
       action_xid     = %(xid)s::text::xid8,
       since_id       = %(id)s,
       since_at       = %(at)s,
       last_id        = greatest(last_id, %(id)s),
       updated_at     = clock_timestamp();

-- name: save_event_position
-- The broker has confirmed the events up to here.
update event_position
   set transition_xid = %(transition_xid)s::text::xid8,
       action_xid     = %(action_xid)s::text::xid8,
       last_id        = greatest(last_id, %(last_id)s),
       published      = published + %(published)s,
       updated_at     = clock_timestamp();

-- name: event_steps
-- The next steps of the history, whole transactions, with what is known about their retries. Of a transaction, all steps
-- or none: so the position is one number.
select step.xid::text, step.id, step.retry_id::text, step.round, step.state, step.at, step.actor, step.reason, step.detail,
       live.queue, live.message_id, live.policy, live.owner, live.job_type, live.priority, live.max_retries,
       case when live.round = step.round then live.retry_count end, live.error_class, live.error_type, live.fingerprint
  from (select xid, id, retry_id, round, state, at, actor, reason, detail
          from transition
         where xid > %(after)s::text::xid8 and xid < %(bound)s::text::xid8 and id > %(since_id)s
           and state not in ('claimed', 'started', 'layover')
         order by xid
         fetch first %(limit)s rows with ties) as step
  left join retry as live on live.id = step.retry_id;

-- name: event_steps_before
-- The states that these rounds have had, as far as steps have been read.
select retry_id::text, round, array_agg(distinct state)
  from transition
  join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as wanted (retry_id, round) using (retry_id, round)
 where xid is null or xid <= %(reached)s::text::xid8 or id <= %(since_id)s
 group by retry_id, round;

-- name: event_steps_restored
-- After a restore, in slices: the steps from before the cut that had not been published when the backup was made, and
-- those that were written between the restore and the cut.
select step.xid::text, step.id, step.retry_id::text, step.round, step.state, step.at, step.actor, step.reason, step.detail,
       live.queue, live.message_id, live.policy, live.owner, live.job_type, live.priority, live.max_retries,
       case when live.round = step.round then live.retry_count end, live.error_class, live.error_type, live.fingerprint
  from (select xid, id, retry_id, round, state, at, actor, reason, detail
          from transition
         where id > %(from_id)s and id <= %(cut)s and (xid > %(after)s::text::xid8 or id > %(last_id)s)
           and xid is not null and state not in ('claimed', 'started', 'layover')
         order by id
         fetch first %(limit)s rows only) as step
  left join retry as live on live.id = step.retry_id
 order by step.id;

-- name: event_steps_before_restored
-- After a restore: the states that these rounds have had, up to this id and as far as they had been published.
select retry_id::text, round, array_agg(distinct state)
  from transition
  join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as wanted (retry_id, round) using (retry_id, round)
 where id <= %(reached)s or xid is null or (xid <= %(after)s::text::xid8 and id <= %(last_id)s)
 group by retry_id, round;

-- name: event_actions
-- The next actions that are over, or were given up.
select xid::text, id::text, coalesce(finished_at, logged_at, at), actor, kind, target, detail, outcome
  from action
 where xid > %(after)s::text::xid8 and xid < %(bound)s::text::xid8
   and coalesce(finished_at, logged_at, at) > %(since_at)s
 order by action.xid  -- not the column above, which is text
 fetch first %(limit)s rows with ties;

-- name: event_actions_restored
-- After a restore: the actions that may not have been published, from an hour before the backup on.
select xid::text, id::text, coalesce(finished_at, logged_at, at), actor, kind, target, detail, outcome
  from action
 where xid is not null and coalesce(finished_at, logged_at, at) > %(saved_at)s - interval '1 hour'
   and coalesce(finished_at, logged_at, at) <= %(cut_at)s
 order by 3;

-- name: event_lag
-- The number of published events, how long ago the oldest step was written that is not published yet, and its
-- transaction; null if there is none.
select position.published,
       extract(epoch from clock_timestamp() - least(step.at, done.at))::float8,
       least(step.xid, done.xid)::text
  from event_position as position
  left join lateral (select at, xid
                       from transition
                      where xid > position.transition_xid and id > position.since_id
                        and state not in ('claimed', 'started', 'layover')
                      order by xid
                      limit 1) as step on true
  left join lateral (select coalesce(finished_at, logged_at, action.at) as at, xid
                       from action
                      where xid > position.action_xid and coalesce(finished_at, logged_at, action.at) > position.since_at
                      order by xid
                      limit 1) as done on true;

-- name: event_holder
-- The oldest transaction that is not over, if the oldest step that is not published waits for it: one that began later
-- holds nothing up. A prepared one has a name instead of a process. Another user's application and start are visible only
-- to a member of pg_read_all_stats.
select lock.pid, activity.application_name, activity.xact_start, prepared.gid
  from pg_locks as lock
  left join pg_stat_activity as activity on activity.pid = lock.pid
  left join pg_prepared_xacts as prepared on prepared.transaction = lock.transactionid
 where lock.locktype = 'transactionid' and lock.mode = 'ExclusiveLock' and lock.granted
   and lock.transactionid = pg_snapshot_xmin(pg_current_snapshot())::xid
   and pg_snapshot_xmin(pg_current_snapshot()) <= %(oldest_xid)s::text::xid8
   and lock.pid is distinct from pg_backend_pid();
