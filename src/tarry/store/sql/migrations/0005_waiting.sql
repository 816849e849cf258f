-- What waits in each tier is counted once a minute, by `tarry status` and by `tarry audit verify`: from an index, since the
-- rows hold the messages themselves, and reading a million of them takes seconds of all cores.

create index retry_in_tier on retry (tier, entered_at) include (due_at, expected_at) where state = 'scheduled';
