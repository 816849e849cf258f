package tarry.client;

import java.util.Locale;

/** The class of an error, as the contract names it. */
public enum ErrorClass {
    FINAL, RETRYABLE, RATE_LIMITED;

    String header() {
        return name().toLowerCase(Locale.ROOT);
    }
}
