-- Pauses by policy and job type, of automatic retries and of the recovery of stuck messages; how a timed pause ends; and
-- a timed pause of the intake.

alter table pause
  add column scope   text     not null default 'queue',
  add column rate    integer,
  add column canary  boolean  not null default false,
  add column observe interval,
  add constraint pause_scope
check (scope in ('queue', 'policy', 'job-type', 'automatic-retries', 'stuck-recovery'));
comment on table pause is 'A pause that was requested.';
comment on column pause.pattern is 'A glob of destinations, or the name of the policy or the job type; empty for the other scopes.';
comment on column pause.rate is 'Of the release when the pause expires, as canary and observe are; null for the default.';

alter table paused_destination drop constraint paused_destination_kind;
alter table paused_destination
  add constraint paused_destination_kind check (kind in ('queue', 'exchange', 'policy', 'job-type', 'automatic-retries'));
comment on table paused_destination is
    'A destination, a policy, a job type or all automatic retries whose returns wait in a held queue; and the progress of '
    'its release.';
create index paused_destination_gates on paused_destination (destination) where kind not in ('queue', 'exchange');

create index diversion_unconfirmed on diversion (retry_id, round) where begun_at is not null and copied_at is null;

alter table intake add column until timestamptz;
comment on column intake.until is 'When the pause ends by itself; null for never.';

create function tarry_holds(
    kind text, label text, name text, queue text, exchange text, policy text, properties bytea
) returns boolean language sql stable as $$
-- Whether a pause with this kind, label and name applies to the message. A message carries the labels of its policy, of
-- its job type and of automatic retries as routing keys, each after its length. If its properties were not stored, its
-- policy is known, its job type is not, and it is taken to be an automatic retry.
select case when kind in ('queue', 'exchange') then label = tarry_destination(queue, exchange, properties)
            when properties is not null
            then position('S'::bytea || int4send(octet_length(label)) || convert_to(label, 'UTF8') in properties) > 0
            when kind = 'policy' then coalesce(policy = name, false)
            else kind = 'automatic-retries' end
$$;

create function tarry_pauses(queue text, exchange text, policy text, properties bytea) returns setof paused_destination
language sql stable rows 1 as $$
-- What is paused, or being released, and applies to the message.
select *
  from paused_destination as paused
 where paused.destination = tarry_destination(queue, exchange, properties)
   and paused.kind in ('queue', 'exchange') and paused.state <> 'over'
 union all
select *
  from paused_destination as paused
 where paused.kind not in ('queue', 'exchange') and paused.state <> 'over'
   and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties)
$$;

create function tarry_is_paused(queue text, exchange text, policy text, properties bytea) returns boolean
language sql stable as $$
-- Whether the message is held.
select exists (select from tarry_pauses(queue, exchange, policy, properties))
$$;

create or replace function tarry_is_paused(queue text, exchange text, properties bytea) returns boolean
language sql stable as $$
-- For routers of the previous version, which call it while they are running.
select tarry_is_paused(queue, exchange, null::text, properties)
$$;
