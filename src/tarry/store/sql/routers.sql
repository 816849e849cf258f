-- name: report_router
-- A router reports that it runs. The row is created again if it was deleted as one that had stopped reporting.
insert into router (id, host, process, version, started_at, rate, troubles)
values (%(id)s, %(host)s, %(process)s, %(version)s, clock_timestamp() - %(running_for)s::interval, %(rate)s, %(troubles)s)
    on conflict (id) do update
   set seen_at = clock_timestamp(), rate = excluded.rate, troubles = excluded.troubles;

-- name: remove_router
-- A router stops.
delete from router where id = %(id)s;

-- name: routers
-- All routers, the longest-running first. One that has not reported for some time has stopped without saying so, or
-- cannot reach Postgres. The leader is the reporting router that did the maintenance last.
select id, host, process, version, started_at, seen_at, seen_at > clock_timestamp() - %(silent_after)s::interval as reports,
       rate, troubles,
       coalesce(id = (select id from router
                       where maintained_at is not null and seen_at > clock_timestamp() - %(silent_after)s::interval
                       order by maintained_at desc
                       limit 1), false) as is_leader
  from router
 order by started_at, id;

-- name: is_maintained
-- Whether another router that still reports has done the maintenance lately: then it is the leader.
select exists (select from router
                where id <> %(id)s and maintained_at > clock_timestamp() - %(lately)s::interval
                  and seen_at > clock_timestamp() - %(silent_after)s::interval);

-- name: maintained
-- This router does the maintenance.
update router set maintained_at = clock_timestamp() where id = %(id)s;

-- name: prune_routers
-- Routers that have not reported for this long.
delete from router where seen_at < clock_timestamp() - %(older_than)s::interval;
