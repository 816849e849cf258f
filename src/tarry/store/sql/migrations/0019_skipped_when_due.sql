-- Messages that are asked about when they are due, and skipped then.

alter table retry add column skipped_round integer;
comment on column retry.skipped_round is
    'The round that ended because its message was not wanted any more when it was due: a record of its scheduling that '
    'arrives late does not open it again. Null if there is none.';
