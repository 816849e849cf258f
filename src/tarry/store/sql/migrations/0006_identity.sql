-- Which message a retry is about, apart from the id of the retry; and what a claim was granted for.

alter table retry
    add column identity      uuid,
    add column death         text,
    add column claim_token   bigint,
    add column guessed_round integer not null default 0,
    add column free          boolean not null default false;
comment on column retry.identity is
    'Queue, message id and body in its first half, properties and headers in its second. Retries may share one over time.';
comment on column retry.death is
    'Which dead-lettering made the latest request: queue, count and time; null if it was published.';
comment on column retry.claim_token is
    'Of the call that claimed it: a router that got no answer gives back what it was granted.';
comment on column retry.guessed_round is
    'The latest round whose request did not say which round had failed: it was recognised, perhaps wrongly.';
comment on column retry.free is
    'This round spends no attempt, because its request may be the one before, delivered again.';

-- Only what is open or has returned can be recognised, so messages that are alike and over cost nothing.
create index retry_by_identity on retry (identity)
 where identity is not null and state in ('claimed', 'scheduled', 'held', 'unroutable', 'returned');
