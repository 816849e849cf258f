package tarry.client;

import java.time.Duration;

/** The class of an error and the requested wait; each is null if the policy is to decide. */
public record Verdict(ErrorClass errorClass, Duration retryAfter) {
    static final Verdict PLAIN = new Verdict(null, null);

    /** The wait in whole milliseconds, rounded up; null if there is none, or if it has passed. */
    Long retryAfterMs() {
        if (retryAfter == null || retryAfter.isNegative() || retryAfter.isZero()) {
            return null;
        }
        try {
            return retryAfter.plusNanos(999_999).toMillis();
        } catch (ArithmeticException tooLong) {
            return Long.MAX_VALUE;
        }
    }

    /** Whether it adds nothing to what the policy would do by itself. */
    boolean isPlain() {
        return errorClass == null && retryAfterMs() == null;
    }
}
