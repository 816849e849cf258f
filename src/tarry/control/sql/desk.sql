-- name: configure_desk
-- For each new connection of the desk. Its statements look for few rows among many.
select set_config('statement_timeout', '10s', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('random_page_cost', '1.1', false),
       set_config('jit', 'off', false);

-- name: try_lock
-- One process at a time, for as long as the connection lives; false if somebody else has it.
select pg_try_advisory_lock(%(number)s);

-- name: unlock
-- For the next one.
select pg_advisory_unlock(%(number)s);

-- name: begin_action
-- Who is about to do what.
insert into action (id, actor, kind, target, detail)
values (%(id)s, %(actor)s, %(kind)s, %(target)s, %(detail)s);

-- name: finish_action
-- What came of it.
update action set outcome = %(outcome)s, finished_at = clock_timestamp() where id = %(id)s;
