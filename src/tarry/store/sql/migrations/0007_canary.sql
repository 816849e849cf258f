-- A canary passes on what its queues have acknowledged: what they said when it was released is kept with the release.

alter table hold add column stage_queues jsonb;
comment on column hold.stage_queues is
    'The queues of the canary under way: depth and acknowledgements when it was released, and settled acknowledgements.';
