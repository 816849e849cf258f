package tarry.client;

import com.rabbitmq.client.AMQP;
import java.util.Map;
import java.util.Set;

/** The headers that tarry reads and writes, and those that it removes. docs/contract.md explains each. */
final class Headers {
    static final String ID = "tarry-id";
    static final String ROUND = "tarry-round";
    static final String COUNT = "tarry-count";
    static final String MOST = "tarry-max-retries";
    static final String DUE = "tarry-due-ms";
    static final String SINCE = "tarry-since-ms";
    static final String DEADLINE = "tarry-deadline-ms";
    static final String QUEUE = "tarry-queue";
    static final String VIA = "tarry-via";
    static final String USER_ID = "tarry-user-id";
    static final String OWNER = "owner";

    private static final Set<String> STALE = Set.of(
        "error_reason", "error_type", "error_class", "retry_after_ms", "next_retry_at_ms", "review_reason",
        "original_queue", "original_exchange", "original_routing_key",
        "x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC");

    private Headers() {}

    static Map<String, Object> of(AMQP.BasicProperties properties) {
        return properties.getHeaders() == null ? Map.of() : properties.getHeaders();
    }

    /** Headers of an earlier failure, and those that belong to the broker. */
    static boolean isStale(String name) {
        return STALE.contains(name) || name.startsWith("x-first-death-") || name.startsWith("x-last-death-");
    }

    /** Headers that the application did not set. */
    static boolean isAdded(String name) {
        return name.startsWith("tarry-") || name.startsWith("x-");
    }

    /** Null if it is no text. amqp-client decodes texts as LongString. */
    static String text(Object value) {
        return value instanceof String || value instanceof com.rabbitmq.client.LongString ? value.toString() : null;
    }

    /** Null if it is no whole number from 0. */
    static Long count(Object value) {
        boolean isWhole =
            value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte;
        return isWhole && ((Number) value).longValue() >= 0 ? ((Number) value).longValue() : null;
    }
}
