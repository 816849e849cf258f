-- name: anomaly_window
-- Returns and failures by queue and policy in a time, of queues that have rows of their own.
select queue, policy, sum(returned)::bigint, sum(failed)::bigint
  from statistic
 where span = 'hour' and kind = 'queue' and queue <> '' and starts >= %(since)s and starts < %(until)s
 group by 1, 2
having sum(returned) + sum(failed) > 0;

-- name: anomaly_hours_of_queues
-- The same of these queues, by hour.
select queue, starts, sum(returned)::bigint, sum(failed)::bigint
  from statistic
 where span = 'hour' and kind = 'queue' and queue = any(%(queues)s::text[]) and starts >= %(since)s and starts < %(until)s
 group by 1, 2;

-- name: anomaly_hours_of_policy
-- The same of a policy, as far as these queues go.
select starts, sum(returned)::bigint, sum(failed)::bigint
  from statistic
 where span = 'hour' and kind = 'queue' and queue = any(%(queues)s::text[]) and policy = %(policy)s
   and starts >= %(since)s and starts < %(until)s
 group by 1;

-- name: anomaly_error
-- The error after which the most retries of these queues failed.
select coalesce(known.error_type, statistic.value)
  from statistic
  left join statistic_error as known on known.queue = statistic.queue and known.fingerprint = statistic.value
 where span = 'hour' and kind = 'error' and not other and statistic.queue = any(%(queues)s::text[])
   and starts >= %(since)s and starts < %(until)s and value <> '' and failed > 0
 group by 1
 order by sum(failed) desc, 1
 limit 1;

-- name: open_anomalies
-- Those that go on, the oldest first.
select kind, name, began_at, rate, usual_rate, highest_rate, returned, failed, error
  from anomaly
 where ended_at is null
 order by began_at, kind, name;

-- name: begin_anomaly
-- Records that an anomaly has begun, with an action that is published as its event; nothing if it has begun already.
with begun as (
    insert into anomaly (kind, name, rate, usual_rate, highest_rate, returned, failed, error)
    values (%(kind)s, %(name)s, %(rate)s, %(usual_rate)s, %(rate)s, %(returned)s, %(failed)s, %(error)s)
        on conflict (kind, name) where ended_at is null do nothing
    returning id
)
insert into action (id, actor, kind, target, detail, outcome, finished_at, xid)
select gen_random_uuid(), %(actor)s, 'anomaly_began', %(target)s, %(detail)s, %(outcome)s, clock_timestamp(),
       pg_current_xact_id()
  from begun;

-- name: keep_anomaly
-- Stores how an anomaly is now.
update anomaly
   set rate = %(rate)s, highest_rate = greatest(highest_rate, %(rate)s), returned = %(returned)s, failed = %(failed)s
 where kind = %(kind)s and name = %(name)s and ended_at is null
   and (rate, returned, failed) is distinct from (%(rate)s, %(returned)s, %(failed)s);

-- name: end_anomaly
-- Records that an anomaly is over, with an action that is published as its event.
with ended as (
    update anomaly
       set ended_at = clock_timestamp(), why_ended = %(why)s, rate = %(rate)s, returned = %(returned)s, failed = %(failed)s
     where kind = %(kind)s and name = %(name)s and ended_at is null
    returning id
)
insert into action (id, actor, kind, target, detail, outcome, finished_at, xid)
select gen_random_uuid(), %(actor)s, 'anomaly_ended', %(target)s, %(detail)s, %(outcome)s, clock_timestamp(),
       pg_current_xact_id()
  from ended;

-- name: prune_anomalies
-- Anomalies that ended so long ago, in slices.
delete from anomaly
 where id in (select id from anomaly where ended_at < statement_timestamp() - %(older_than)s::interval limit %(limit)s);
