package tarry.client;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Builds the retry request for a delivery that failed: the original message, plus headers that describe the failure. */
final class Request {
    private static final int SHORT_REASON = 80; // characters of a reason if the headers are close to the limit of a frame
    private static final int OTHER_PROPERTIES = 2_600; // ten short strings of at most 255 bytes, and the frame's own
    private static final String DIRECT_REPLY = "amq.rabbitmq.reply-to";

    private Request() {}

    /** Its body is the delivery's. A message that has an owner keeps it. */
    static AMQP.BasicProperties of(Delivery delivery, Attempt attempt, Failure failure, String owner, int frameMax) {
        Map<String, Object> headers = headers(delivery, attempt, failure, owner);
        if (size(headers) + OTHER_PROPERTIES > frameMax) {
            headers = headers(delivery, attempt, failure.cut(SHORT_REASON), owner);
        }
        AMQP.BasicProperties properties = delivery.getProperties();
        // A user_id of another user closes the channel, and an expiration ends the wait.
        return properties.builder()
            .headers(headers).deliveryMode(2).expiration(null).userId(null).clusterId(null)
            .replyTo(DIRECT_REPLY.equals(properties.getReplyTo()) ? null : properties.getReplyTo())
            .build();
    }

    /** All of tarry's own headers are kept: they say which round failed. An earlier failure's description is dropped. */
    private static Map<String, Object> headers(Delivery delivery, Attempt attempt, Failure failure, String owner) {
        Map<String, Object> headers = new HashMap<>(Headers.of(delivery.getProperties()));
        headers.keySet().removeIf(Headers::isStale);
        String key = delivery.getEnvelope().getRoutingKey();
        headers.put("original_queue", attempt.queue());
        headers.put("original_exchange", delivery.getEnvelope().getExchange());
        headers.put("original_routing_key", key.isEmpty() ? attempt.queue() : key);
        headers.put("retry_count", attempt.retryCount());
        headers.put("error_type", failure.type());
        headers.put("error_reason", failure.reason());
        ErrorClass errorClass = failure.verdict().errorClass();
        putIfAny(headers, "error_class", errorClass == null ? null : errorClass.header());
        putIfAny(headers, "retry_after_ms", failure.verdict().retryAfterMs());
        putIfAny(headers, Headers.USER_ID, delivery.getProperties().getUserId());
        Object before = headers.get(Headers.OWNER);
        putIfAny(headers, Headers.OWNER, before == null || before.toString().isEmpty() ? owner : null);
        return headers;
    }

    private static void putIfAny(Map<String, Object> headers, String name, Object value) {
        if (value != null) {
            headers.put(name, value);
        }
    }

    /** At most so many bytes when it is encoded. */
    private static int size(Object value) {
        if (value instanceof Map<?, ?> table) {
            return 5 + table.entrySet().stream().mapToInt(one -> 1 + bytes(one.getKey()) + size(one.getValue())).sum();
        }
        if (value instanceof List<?> list) {
            return 5 + list.stream().mapToInt(Request::size).sum();
        }
        if (value instanceof byte[] raw) {
            return 5 + raw.length;
        }
        return value == null ? 1 : Math.max(9, 5 + bytes(value));
    }

    private static int bytes(Object text) {
        return text.toString().getBytes(StandardCharsets.UTF_8).length;
    }
}
