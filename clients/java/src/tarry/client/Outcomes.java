package tarry.client;

import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * Collects starts and successes of messages that came back from tarry, which does not know any others, and combines them
 * into few reports to the audit. A start is reported only if its attempt still runs after `reportInterval`.
 */
final class Outcomes {
    private static final int MOST = 10_000;

    private record Round(String id, long number) {}

    private final Options options;
    private final Map<Round, Long> starts = new HashMap<>(); // attempts that are running and not reported yet
    private List<String> rows = new ArrayList<>();

    Outcomes(Options options) {
        this.options = options;
    }

    /** An attempt begins. */
    synchronized void start(Delivery delivery, String queue) {
        Round round = roundOf(delivery, queue);
        if (options.report && options.reportStarts && round != null && starts.size() < MOST) {
            starts.put(round, System.currentTimeMillis());
        }
    }

    /** The attempt ended and was not a success: a request follows, or the broker has the message again. */
    synchronized void end(Delivery delivery, String queue) {
        starts.remove(roundOf(delivery, queue));
    }

    /** Whether the report should be sent at once. */
    synchronized boolean add(Delivery delivery, String queue, Duration took) {
        Round round = roundOf(delivery, queue);
        starts.remove(round);
        if (!options.report || round == null || rows.size() >= MOST) {
            return false;
        }
        rows.add(String.format(
            "{\"id\":\"%s\",\"round\":%d,\"outcome\":\"succeeded\",\"retry_count\":%d,\"at_ms\":%d,\"duration_ms\":%d}",
            round.id, round.number, Attempt.of(delivery, queue).retryCount(), System.currentTimeMillis(), took.toMillis()));
        // The start of a long attempt was reported: if its success is lost, it counts as stuck.
        boolean isLong = options.reportStarts && took.compareTo(options.reportInterval) >= 0;
        return isLong || rows.size() >= options.reportBatch;
    }

    /** The pending report, or null; starts of attempts that have only just begun stay. */
    synchronized byte[] take() {
        long latest = System.currentTimeMillis() - options.reportInterval.toMillis();
        List<String> outcomes = rows;
        rows = new ArrayList<>();
        starts.forEach((round, at) -> {
            if (at <= latest) {
                outcomes.add(String.format(
                    "{\"id\":\"%s\",\"round\":%d,\"outcome\":\"started\",\"at_ms\":%d,\"consumer\":%s}",
                    round.id, round.number, at, quoted(options.consumerName())));
            }
        });
        starts.values().removeIf(at -> at <= latest);
        return outcomes.isEmpty() ? null
            : ("{\"outcomes\":[" + String.join(",", outcomes) + "]}").getBytes(StandardCharsets.UTF_8);
    }

    /** For a consumer that closes: the broker delivers what it has not settled again. */
    synchronized void forgetStarts() {
        starts.clear();
    }

    /** Null for a message that did not return to this queue. */
    private static Round roundOf(Delivery delivery, String queue) {
        Map<String, Object> headers = Headers.of(delivery.getProperties());
        String id = Headers.text(headers.get(Headers.ID));
        Long number = Headers.count(headers.get(Headers.ROUND));
        boolean isOurs = queue.equals(Headers.text(headers.get(Headers.QUEUE))) && isCanonical(id);
        return isOurs && number != null ? new Round(id, number) : null;
    }

    private static boolean isCanonical(String id) {
        try {
            return id != null && UUID.fromString(id).toString().equals(id);
        } catch (IllegalArgumentException invalid) {
            return false;
        }
    }

    /** As a JSON string. */
    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(one -> quoted.append(
            one < ' ' || one == '"' || one == '\\' ? String.format("\\u%04x", one) : String.valueOf((char) one)));
        return quoted.append('"').toString();
    }
}
