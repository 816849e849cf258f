-- name: configure_operator
-- Settings for each new connection of an operator context. Its statements look for few rows among many.
select set_config('statement_timeout', '10s', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('random_page_cost', '1.1', false),
       set_config('jit', 'off', false);

-- name: try_lock
-- One process at a time, until it unlocks or its connection closes; false if another process has the lock.
select pg_try_advisory_lock(%(number)s);

-- name: unlock
-- Release the lock.
select pg_advisory_unlock(%(number)s);

-- name: begin_action
-- Record an operator action before it is carried out.
insert into action (id, actor, kind, target, detail, origin)
values (%(id)s, %(actor)s, %(kind)s, %(target)s, %(detail)s, %(origin)s);

-- name: finish_action
-- Record the outcome of an operator action. Its event is published by this transaction's id.
update action
   set outcome = %(outcome)s, finished_at = clock_timestamp(), xid = pg_current_xact_id()
 where id = %(id)s;

-- name: actions_to_log
-- Takes actions that no service has logged yet: those that are over, and those that should be over by now. These have an
-- event without an outcome. Earlier versions write an outcome without a transaction id: this one publishes its event.
update action
   set logged_at = clock_timestamp(),
       xid       = case when finished_at is null or xid is null then pg_current_xact_id() else xid end
 where id in (select id
                from action
               where logged_at is null
                 and (finished_at is not null or at < clock_timestamp() - %(unfinished_after)s::interval)
               order by at
               limit %(limit)s
                 for update skip locked)
returning id::text, at, actor, kind, target, detail, outcome;
