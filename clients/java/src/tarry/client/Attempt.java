package tarry.client;

import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Which attempt a delivery is, how many are allowed, and until when. What is not known is null. */
public final class Attempt {
    private final String queue;
    private final String messageId;
    private final Delivery delivery;
    private final Map<String, Object> returned;

    private Attempt(String queue, Delivery delivery) {
        this.queue = queue;
        this.delivery = delivery;
        this.messageId = delivery.getProperties().getMessageId();
        Map<String, Object> headers = Headers.of(delivery.getProperties());
        // Without this, a message that was forwarded from another queue would not be a new one here.
        boolean isReturned = headers.containsKey(Headers.ID) && (isOf(headers) || headers.containsKey(Headers.VIA));
        this.returned = isReturned ? headers : Map.of();
    }

    /** Never throws: an invalid header counts as absent. */
    public static Attempt of(Delivery delivery, String queue) {
        return new Attempt(queue, delivery);
    }

    private boolean isOf(Map<String, Object> headers) {
        return queue.equals(Headers.text(headers.get(Headers.QUEUE)));
    }

    public String queue() {
        return queue;
    }

    public String messageId() {
        return messageId;
    }

    /** tarry's id of the message; null on its first delivery. */
    public String retryId() {
        return isOf(returned) ? Headers.text(returned.get(Headers.ID)) : null;
    }

    /** Which pass through tarry brought it here; 0 on its first delivery. */
    public long round() {
        return count(Headers.ROUND);
    }

    /** Retries already spent; a rate-limited round spends none. */
    public long retryCount() {
        return count(Headers.COUNT);
    }

    /** The number of retries that it may spend in total; null on its first delivery. */
    public Long maxRetries() {
        return Headers.count(returned.get(Headers.MOST));
    }

    /** 1 on the first delivery. */
    public long number() {
        return retryCount() + 1;
    }

    /** Whether a failure of this attempt goes to review; a rate limit is the exception. */
    public boolean isLast() {
        return maxRetries() != null && retryCount() >= maxRetries();
    }

    /** When the retry was due. */
    public Instant due() {
        return moment(Headers.DUE);
    }

    public Instant firstFailed() {
        return moment(Headers.SINCE);
    }

    /** No retry comes later than this; null if its policy has no `max_age`. */
    public Instant deadline() {
        return moment(Headers.DEADLINE);
    }

    /** Equal for all deliveries of this attempt, different for every other attempt; null if that cannot be known. */
    public String key() {
        if (retryId() != null) {
            return retryId() + ":" + round();
        }
        return messageId == null ? null : List.of(queue, messageId) + ":" + digest() + ":" + round();
    }

    /** Of what the user sent, without what tarry and the broker added. */
    private String digest() {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            Map<String, Object> headers = new TreeMap<>(Headers.of(delivery.getProperties()));
            headers.keySet().removeIf(Headers::isAdded);
            digest.update(described(headers).getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest.digest(delivery.getBody()));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** As `toString`, which for bytes would be another text each time. */
    private static String described(Object value) {
        if (value instanceof Map<?, ?> table) {
            Map<String, String> sorted = new TreeMap<>();
            table.forEach((name, one) -> sorted.put(String.valueOf(name), described(one)));
            return sorted.toString();
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Attempt::described).toList().toString();
        }
        return value instanceof byte[] bytes ? Arrays.toString(bytes) : String.valueOf(value);
    }

    private long count(String name) {
        Long found = Headers.count(returned.get(name));
        return found == null ? 0 : found;
    }

    private Instant moment(String name) {
        Long ms = Headers.count(returned.get(name));
        return ms == null ? null : Instant.ofEpochMilli(ms);
    }

    @Override
    public String toString() {
        return "attempt " + number() + " at message " + messageId + " of queue " + queue;
    }
}
