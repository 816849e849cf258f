create table retry_task (
    id         bigint generated always as identity primary key,
    message_id text,
    queue      text        not null,
    properties bytea       not null,
    body       bytea       not null,
    due        timestamptz not null,
    status     text        not null default 'pending',
    created_at timestamptz not null default now(),
    sent_at    timestamptz
);
create index retry_task_due on retry_task (due) where status = 'pending';
