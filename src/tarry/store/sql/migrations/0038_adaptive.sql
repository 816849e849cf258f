-- Decisions from history: errors that are given up, and what operators have decided about errors.

create table given_up_error (
    queue          text        collate "C" not null,
    policy         text        collate "C" not null,
    fingerprint    text        collate "C" not null,
    since          timestamptz not null default clock_timestamp(),
    reason         text        not null,
    succeeded      bigint      not null,
    failed         bigint      not null,
    evidence_since timestamptz not null,
    primary key (queue, policy, fingerprint)
);
comment on table given_up_error is
    'Errors whose messages go to review at once, since their retries (almost) never succeed. The evidence is that of the '
    'moment when each was given up.';
comment on column given_up_error.evidence_since is 'When the earliest of these retries ended, by hour or day.';

create table error_choice (
    queue       text        collate "C" not null,
    fingerprint text        collate "C" not null,
    always      boolean     not null,
    actor       text        not null,
    reason      text,
    at          timestamptz not null default clock_timestamp(),
    primary key (queue, fingerprint)
);
comment on table error_choice is 'Errors that an operator has retried again.';
comment on column error_choice.always is
    'Whether it is never given up; otherwise what happened before is forgotten, and it is judged anew.';
