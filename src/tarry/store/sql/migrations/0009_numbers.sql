-- What the metrics, the log and `tarry status` need to know: the routers, retries that a person began, logged actions.

create table router (
    id            text        primary key,
    host          text        not null,
    process       integer     not null,
    version       text        not null,
    started_at    timestamptz not null,
    seen_at       timestamptz not null default clock_timestamp(),
    rate          real        not null default 0,
    troubles      text[]      not null default '{}',
    maintained_at timestamptz
);
comment on table router is 'One row for each running router, which it updates every few seconds and deletes when it stops.';
comment on column router.id is 'The actor that the router writes to the history.';
comment on column router.rate is 'Requests a second between its last two reports.';
comment on column router.troubles is 'What limits or prevents its work; empty if nothing does.';
comment on column router.maintained_at is 'When it last did the maintenance of the audit pass.';

alter table retry add column manual_round integer not null default 0;
comment on column retry.manual_round is 'The latest round that a person began, by a retry-now or a redrive.';

alter table paused_destination add column released_by text;
comment on column paused_destination.released_by is 'Who resumed it last; null if its pause expired.';

alter table action add column logged_at timestamptz;
comment on column action.logged_at is 'When a service wrote it to its log: one service writes each action, once.';
update action set logged_at = clock_timestamp();
create index action_unlogged on action (at) where logged_at is null;

-- Few rows are unroutable: this index stays small, and the others cost nothing in it.
create index transition_unroutable on transition (at) where state = 'unroutable';
