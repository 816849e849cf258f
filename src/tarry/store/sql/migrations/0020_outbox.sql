-- Events are read from the history and the action log by transaction id, since ids alone skip rows: a row may be committed
-- after one with a higher id was read.

-- Added without a default, and given one afterwards: with the default at once, Postgres would write all rows anew. Rows
-- that exist have none, and are published by nobody.
alter table transition add column xid xid8;
alter table transition alter column xid set default pg_current_xact_id();
comment on column transition.xid is 'The transaction that wrote the step. Events are published in its order.';
create index transition_xid on transition (xid) where xid is not null;

alter table action add column xid xid8;
comment on column action.xid is 'The transaction that wrote the outcome, or that gave up waiting for it.';
create index action_xid on action (xid) where xid is not null;

do $$
-- One more note in the history, as in 0011: rows that exist need no check, since the new constraint only allows more.
declare
    allowed   text := (select pg_get_expr(conbin, conrelid) from pg_constraint
                        where conrelid = 'transition'::regclass and conname = 'transition_state');
    partition regclass;
begin
    alter table transition drop constraint transition_state;
    for partition in select inhrelid from pg_inherits where inhparent = 'transition'::regclass loop
        execute format('alter table %s drop constraint if exists transition_state', partition);
    end loop;
    execute format('alter table transition add constraint transition_state check (%s or state = ''missing'') not valid', allowed);
end $$;
comment on table transition is
    'Append-only: every step of every retry, and the notes duplicate, overdue, missing, recovered, started, stuck and layover.';

create table event_position (
    single            boolean     primary key default true check (single),
    system_identifier bigint      not null,
    transition_xid    xid8        not null,
    action_xid        xid8        not null,
    last_id           bigint      not null,
    since_id          bigint      not null default 0,
    since_at          timestamptz not null default 'epoch',
    published         bigint      not null default 0,
    updated_at        timestamptz not null default clock_timestamp()
);
comment on table event_position is 'One row at most: how far events have been published.';
comment on column event_position.system_identifier is 'The cluster whose transaction ids these are.';
comment on column event_position.transition_xid is 'Every step of a transaction up to this one has been published.';
comment on column event_position.action_xid is 'The same for the action log.';
comment on column event_position.last_id is 'The highest id among the steps that have been published.';
comment on column event_position.since_id is
    'Steps up to this id were written before the database was restored to another cluster; they have been published.';
comment on column event_position.since_at is 'The same for the action log.';

create function tarry_event_cut(out id bigint, out xid xid8, out at timestamptz) language plpgsql as $$
-- A point between two writes of the history: steps with a higher id belong to transactions from this id on. Waits for
-- the writes that are under way.
begin
    lock table transition, action in share row exclusive mode;
    select last_value into id from transition_id;
    select pg_snapshot_xmin(pg_current_snapshot()), clock_timestamp() into xid, at;
end $$;
