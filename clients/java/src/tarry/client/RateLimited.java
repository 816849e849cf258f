package tarry.client;

import java.net.http.HttpResponse;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;

/** A rate limit: retry later. With a wait the retry comes after it and spends no attempt. */
public class RateLimited extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final Duration retryAfter;

    public RateLimited(String reason) {
        this(reason, (Duration) null);
    }

    public RateLimited(String reason, Duration retryAfter) {
        super(reason);
        this.retryAfter = retryAfter;
    }

    public RateLimited(String reason, Instant until) {
        this(reason, Duration.between(Instant.now(), until));
    }

    /** Throws RateLimited for a response with 429 or 503, with the wait that its server asked for. */
    public static void check(HttpResponse<?> response) {
        check(response.statusCode(), response.headers().firstValue("retry-after").orElse(null));
    }

    /** The same for other HTTP clients. `retryAfter` is the header of that name: seconds, a date, or null. */
    public static void check(int status, String retryAfter) {
        if (status == 429 || status == 503) {
            throw new RateLimited("HTTP status " + status, waitOf(retryAfter));
        }
    }

    /** An invalid value counts as absent. */
    private static Duration waitOf(String text) {
        if (text == null) {
            return null;
        }
        try {
            return Duration.ofMillis((long) Math.ceil(Double.parseDouble(text.strip()) * 1_000));
        } catch (NumberFormatException notSeconds) {
            return untilDate(text.strip());
        }
    }

    private static Duration untilDate(String text) {
        try {
            return Duration.between(Instant.now(), ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME));
        } catch (DateTimeException notADate) {
            return null;
        }
    }

    /** Null if there is no wait. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
