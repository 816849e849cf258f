-- name: begin_call
-- True if this call is ours to make: its key is new, or too old to count, or its first try was cut off.
insert into api_call as known (caller, key, fingerprint)
values (%(caller)s, %(key)s, %(fingerprint)s)
    on conflict (caller, key) do update
   set fingerprint = excluded.fingerprint, started_at = clock_timestamp(), finished_at = null, status = null,
       media_type = null, body = null
 where known.started_at < clock_timestamp() - %(keep)s::interval
    or (known.finished_at is null and known.fingerprint = excluded.fingerprint
        and known.started_at < clock_timestamp() - %(lease)s::interval)
returning true;

-- name: known_call
-- What is known of a key.
select fingerprint, status, media_type, body from api_call where caller = %(caller)s and key = %(key)s;

-- name: finish_call
-- Its answer, for whoever asks again.
update api_call
   set finished_at = clock_timestamp(), status = %(status)s, media_type = %(media_type)s, body = %(body)s
 where caller = %(caller)s and key = %(key)s and fingerprint = %(fingerprint)s;

-- name: drop_call
-- It changed nothing: whoever asks again starts anew.
delete from api_call where caller = %(caller)s and key = %(key)s and fingerprint = %(fingerprint)s and finished_at is null;

-- name: forget_calls
-- Those that are too old to count, a bounded number at a time.
delete from api_call
 where (caller, key) in (select caller, key from api_call
                          where started_at < statement_timestamp() - %(keep)s::interval order by started_at limit 10000);
