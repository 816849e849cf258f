-- What operators did and want: the log of their actions, cancels and retry-nows under way, pauses, and the intake.

create table action (
    id          uuid        primary key,
    at          timestamptz not null default clock_timestamp(),
    actor       text        not null,
    kind        text        not null,
    target      text        not null,
    detail      jsonb       not null default '{}',
    outcome     jsonb,
    finished_at timestamptz
);
comment on table action is 'Who did what, written before it is done; an outcome that stays null was cut off.';
create index action_at on action (at);
create index action_on on action (target, at);

create table diversion (
    id          uuid        primary key,
    retry_id    uuid        not null,
    round       integer     not null,
    kind        text        not null,
    actor       text        not null,
    reason      text,
    due_at      timestamptz not null,
    asked_at    timestamptz not null default clock_timestamp(),
    bound_at    timestamptz,
    on_release  boolean     not null default false,
    diverted_at timestamptz,
    begun_at    timestamptz,
    copied_at   timestamptz,
    verdict     text,
    decided_at  timestamptz,
    unbound_at  timestamptz,
    constraint diversion_kind check (kind in ('cancel', 'retry_now')),
    constraint diversion_verdict check (verdict in ('cancelled', 'retried', 'returned', 'dropped'))
);
comment on table diversion is 'A binding on the cancelled gate for one round of one retry: a cancel, or a retry-now.';
comment on column diversion.due_at is 'When the waiting message was due when this was asked for.';
comment on column diversion.on_release is 'Whether it is bound on the released gate too: the message may be in a held queue.';
comment on column diversion.diverted_at is 'When the waiting message came to the cancelled queue.';
comment on column diversion.begun_at is 'When the round of its copy began, of a retry-now.';
comment on column diversion.copied_at is 'When the broker confirmed the copy of a retry-now.';
comment on column diversion.verdict is 'What became of it: cancelled, retried, returned (too late), or dropped (not done).';
create unique index diversion_under_way on diversion (retry_id, round) where unbound_at is null;

create table pause (
    id        uuid        primary key,
    pattern   text        not null,
    actor     text        not null,
    reason    text,
    at        timestamptz not null default clock_timestamp(),
    until     timestamptz,
    ended_at  timestamptz,
    ended_by  text
);
comment on table pause is 'What somebody wants: no returns to the destinations that match the pattern, for good or until.';
create index pause_active on pause (at) where ended_at is null;

create table pause_exception (
    pause_id    uuid not null references pause on delete cascade,
    destination text not null,
    primary key (pause_id, destination)
);
comment on table pause_exception is 'Destinations that were resumed by themselves while the pause of many goes on.';

create table hold (
    destination text        primary key,
    kind        text        not null,
    name        text        not null,
    state       text        not null,
    since       timestamptz not null default clock_timestamp(),
    state_since timestamptz not null default clock_timestamp(),
    bound_at    timestamptz,
    rate        integer,
    canary      boolean     not null default false,
    look        interval    not null default interval '10 seconds',
    stage       integer     not null default 0,
    stage_since timestamptz,
    stage_ids   jsonb,
    released    bigint      not null default 0,
    problem     text,
    updated_at  timestamptz not null default clock_timestamp(),
    constraint hold_kind check (kind in ('queue', 'exchange')),
    constraint hold_state check (state in ('holding', 'releasing', 'canary_failed', 'over'))
);
comment on table hold is 'What is so: one destination whose returns wait in its held queue, and how far its release is.';
comment on column hold.destination is 'The last part of the held queue''s name.';
comment on column hold.bound_at is 'Since when everything that comes due is held; null while the binding is not confirmed.';
comment on column hold.look is 'How long a canary is watched before more are released.';
comment on column hold.stage is 'Of a release: which canary, then all the rest.';
comment on column hold.stage_ids is 'The retries of the canary under way, each with its round.';

create table intake (
    single    boolean     primary key default true check (single),
    paused    boolean     not null,
    actor     text        not null,
    reason    text,
    at        timestamptz not null default clock_timestamp()
);
comment on table intake is 'One row at most: whether the routers take requests.';

create function tarry_destination(queue text, exchange text, properties bytea) returns text language sql immutable as $$
-- What a message's destination is called in the table of holds: its exchange if it returns through that, else its queue.
select case when position('~via:'::bytea in properties) > 0 or position('~via#'::bytea in properties) > 0
            then 'exchange:' || exchange
            else queue end
$$;

create function tarry_on_hold(queue text, exchange text, properties bytea) returns boolean language sql stable as $$
-- Whether a message to this destination waits on purpose.
select exists (select from hold
                where hold.destination = tarry_destination(queue, exchange, properties) and hold.state <> 'over')
$$;
