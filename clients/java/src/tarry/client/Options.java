package tarry.client;

import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/** Options of a consumer; the defaults suit most. Set them before the first `Retries` is made with them. */
public final class Options {
    final Map<Class<? extends Throwable>, Function<Throwable, Verdict>> classes = new HashMap<>();
    String prefix = "retry.";
    BiFunction<Map<String, Object>, byte[], String> owner = (headers, body) -> null;
    UnaryOperator<String> redact = UnaryOperator.identity();
    int longestReason = 1_000;
    boolean rejectsPlain;
    boolean report = true;
    boolean reportStarts = true;
    String consumer;
    int reportBatch = 200;
    Duration reportInterval = Duration.ofSeconds(1);
    List<Duration> pauses = Stream.of(100, 500, 1_000, 2_000, 5_000, 5_000, 5_000, 5_000).map(Duration::ofMillis).toList();

    /** The installation's prefix of names; set it only if it is not `retry.`. */
    public Options prefix(String text) {
        prefix = text;
        return this;
    }

    /** Errors of this type, and of those that extend it and have no entry of their own, are of this class. */
    public Options classify(Class<? extends Throwable> type, ErrorClass errorClass) {
        return classify(type, error -> new Verdict(errorClass, null));
    }

    /** For errors that have to be inspected. The function returns null to leave the decision to the next entry. */
    public Options classify(Class<? extends Throwable> type, Function<Throwable, Verdict> judge) {
        classes.put(type, judge);
        return this;
    }

    /** Whom a failed message belongs to (a user, a tenant, an organisation). A message that has an owner keeps it. */
    public Options owner(String name) {
        return owner((headers, body) -> name);
    }

    /** The same, as a function of a message's headers and body. */
    public Options owner(BiFunction<Map<String, Object>, byte[], String> function) {
        owner = function;
        return this;
    }

    /** Removes secrets from an error's text before the text leaves the process. */
    public Options redact(UnaryOperator<String> function) {
        redact = function;
        return this;
    }

    /** The maximum number of characters of an error's text that are sent. */
    public Options longestReason(int characters) {
        longestReason = characters;
        return this;
    }

    /**
     * Rejects a message whose failure specifies neither a class nor a wait, instead of requesting a retry. It requires
     * the queue to be attached (`tarry attach`); otherwise the message is lost.
     */
    public Options rejectPlain() {
        rejectsPlain = true;
        return this;
    }

    /** Whether successes of retried messages are reported to the audit. */
    public Options report(boolean value) {
        report = value;
        return this;
    }

    /** Whether attempts at retried messages that take longer than `reportInterval` are reported as started. */
    public Options reportStarts(boolean value) {
        reportStarts = value;
        return this;
    }

    /** The name of this consumer in reports of starts; by default its host and process id. */
    public Options consumer(String name) {
        consumer = name;
        return this;
    }

    /** The maximum number of successes in one report. */
    public Options reportBatch(int most) {
        reportBatch = most;
        return this;
    }

    /** The longest time that a success waits to be reported. */
    public Options reportInterval(Duration interval) {
        reportInterval = interval;
        return this;
    }

    /** Pauses between attempts to publish a request; after the last attempt the message is requeued. */
    public Options pauses(List<Duration> durations) {
        pauses = List.copyOf(durations);
        return this;
    }

    String consumerName() {
        return consumer != null ? consumer : Process.NAME;
    }

    private static final class Process {
        static final String NAME = host() + ":" + ManagementFactory.getRuntimeMXBean().getPid();

        private static String host() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException unnamed) {
                return "localhost";
            }
        }
    }
}
