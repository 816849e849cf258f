-- What people decided about messages in review: jobs with their frozen selection, and the originals of what was edited.

create index retry_in_review on retry (updated_at, id) where state = 'in_review';

alter table retry add column review_reason text;
comment on column retry.review_reason is 'Why it went to review, when it last did.';
update retry
   set review_reason = (select reason
                          from transition
                         where retry_id = retry.id and transition.round = retry.round and transition.state = 'in_review'
                         order by transition.id desc
                         limit 1)
 where state = 'in_review';

create view in_review as
select id, message_id, queue, exchange, routing_key, round, retry_count, max_retries, policy, error_class, error_type,
       error_reason, fingerprint, first_failed_at, updated_at as since, octet_length(body) as size,
       review_reason as reason
  from retry
 where state = 'in_review';
comment on view in_review is 'What a person has to decide about, as the books have it: since when and why.';

create function tarry_in_review(
    queue_like text, reason_like text, only_fingerprint text, type_like text, before timestamptz, after timestamptz,
    only_ids uuid[]
) returns setof in_review language sql stable as $$
-- One filter for listing, grouping and selecting. Null means: any.
select *
  from in_review
 where (queue_like is null or queue like queue_like)
   and (reason_like is null or reason ilike reason_like)
   and (only_fingerprint is null or fingerprint = only_fingerprint)
   and (type_like is null or error_type like type_like)
   and (before is null or since < before)
   and (after is null or since >= after)
   and (only_ids is null or id = any(only_ids))
$$;

create table review_job (
    id           uuid        primary key,
    kind         text        not null,
    actor        text        not null,
    created_at   timestamptz not null default clock_timestamp(),
    filter       jsonb       not null default '{}',
    manner       jsonb       not null default '{}',
    body         bytea,
    rate         real,
    reason       text,
    total        integer     not null default 0,
    wanted       text        not null default 'run',
    runner       text,
    seen_at      timestamptz,
    started_at   timestamptz,
    run_since    timestamptz,
    run_settled  integer     not null default 0,
    runs         integer     not null default 0,
    problem      text,
    finished_at  timestamptz,
    constraint review_job_kind check (kind in ('redrive', 'discard')),
    constraint review_job_wanted check (wanted in ('run', 'stop'))
);
comment on table review_job is 'A frozen selection of messages in review, and what is to be done with each.';
comment on column review_job.body is 'The edited payload, if there is one.';
comment on column review_job.seen_at is 'When whoever works on it last said so.';
comment on column review_job.run_settled is 'How many items were settled when this run began: speed is measured from there.';
create index review_job_open on review_job (created_at) where finished_at is null;

create table review_item (
    job_id   uuid    not null references review_job on delete cascade,
    retry_id uuid    not null,
    round    integer not null,
    state    text    not null default 'waiting',
    at       timestamptz,
    due_at   timestamptz,
    problem  text,
    primary key (job_id, retry_id),
    constraint review_item_state check (state in ('waiting', 'sending', 'done', 'gone', 'failed', 'in_doubt', 'skipped'))
);
comment on table review_item is 'One message of a job: waiting, being sent, or what became of it.';
comment on column review_item.at is 'When it was last marked.';
create unique index review_item_open on review_item (retry_id, round) where state in ('waiting', 'sending', 'in_doubt');
create index review_item_by_state on review_item (job_id, state);

create table review_edit (
    id         uuid        primary key default gen_random_uuid(),
    retry_id   uuid        not null,
    round      integer     not null,
    job_id     uuid        not null,
    at         timestamptz not null default clock_timestamp(),
    actor      text        not null,
    changes    jsonb       not null,
    body       bytea       not null,
    properties bytea       not null
);
comment on table review_edit is 'The original of every message that was edited before it was sent on.';
create index review_edit_of on review_edit (retry_id);
