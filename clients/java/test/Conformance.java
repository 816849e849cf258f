import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import tarry.client.Attempt;
import tarry.client.Deduplicator;
import tarry.client.ErrorClass;
import tarry.client.Final;
import tarry.client.Handler;
import tarry.client.Options;
import tarry.client.RateLimited;
import tarry.client.Retries;

/** The conformance program: see clients/README.md for its protocol. One JSON object a line, on stdin and stdout. */
public final class Conformance {
    static class ShopError extends RuntimeException {
        private static final long serialVersionUID = 1L;

        ShopError(String reason, Throwable cause) {
            super(reason, cause);
        }
    }

    static final class CardDeclined extends ShopError {
        private static final long serialVersionUID = 1L;

        CardDeclined(String reason, Throwable cause) {
            super(reason, cause);
        }
    }

    static final class ShopClosed extends ShopError {
        private static final long serialVersionUID = 1L;

        ShopClosed(String reason, Throwable cause) {
            super(reason, cause);
        }
    }

    private static final Map<String, Class<? extends Throwable>> KINDS =
        Map.of("ShopError", ShopError.class, "CardDeclined", CardDeclined.class, "ShopClosed", ShopClosed.class);
    private static final PrintStream OUT = System.out;
    private static final Map<Long, CompletableFuture<Optional<Map<String, Object>>>> WAITING = new ConcurrentHashMap<>();
    private static final AtomicInteger DELIVERIES = new AtomicInteger();

    private final String url;
    private final String queue;
    private final int prefetch;
    private final Options options;
    private final Deduplicator guard;
    private final CountDownLatch isStopping = new CountDownLatch(1);
    private final Thread thread = new Thread(this::run, "consumer");

    private Conformance(Map<String, Object> told) {
        url = (String) told.get("url");
        queue = (String) told.get("queue");
        prefetch = ((Double) told.get("prefetch")).intValue();
        options = optionsOf(object(told.get("options")));
        guard = Boolean.TRUE.equals(told.get("suppress")) ? new Deduplicator() : null;
        thread.start();
    }

    public static void main(String[] arguments) throws Exception {
        Conformance consumer = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> told = Json.object(line);
            switch ((String) told.get("do")) {
                case "consume" -> consumer = new Conformance(told);
                case "settle" -> WAITING.remove(((Double) told.get("delivery")).longValue())
                    .complete(Optional.ofNullable(object(told.get("failure"))));
                default -> consumer.stop();
            }
        }
        System.exit(0);
    }

    private static synchronized void tell(Map<String, Object> line) {
        OUT.println(Json.write(line));
        OUT.flush();
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object value) {
        return (Map<String, Object>) value;
    }

    private void stop() {
        isStopping.countDown();
        new Thread(() -> {
            try {
                thread.join();
                tell(Map.of("stopped", true));
            } catch (InterruptedException impossible) {
                Thread.currentThread().interrupt();
            }
        }).start();
    }

    /** Connects again when it is cut off, as a service does. */
    private void run() {
        try {
            while (isStopping.getCount() > 0) {
                try {
                    consume();
                } catch (Exception isCut) {
                    Thread.sleep(20);
                }
            }
        } catch (InterruptedException impossible) {
            Thread.currentThread().interrupt();
        }
    }

    private void consume() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setAutomaticRecoveryEnabled(false);
        ExecutorService pool = Executors.newFixedThreadPool(prefetch);
        try (Connection connection = factory.newConnection(); Retries retries = new Retries(connection, options)) {
            Channel channel = connection.createChannel();
            channel.basicQos(prefetch);
            Handler handler = guard == null ? this::handle : this::handleOnce;
            String tag = channel.basicConsume(queue, false, retries.consumer(channel, queue, handler, pool));
            tell(Map.of("consuming", true));
            while (connection.isOpen() && !isStopping.await(20, TimeUnit.MILLISECONDS)) {
                continue;
            }
            if (connection.isOpen()) {
                channel.basicCancel(tag);
            }
        } catch (AlreadyClosedException isCut) {
            // as if it had been found closed
        } finally {
            pool.shutdown();
        }
    }

    private void handleOnce(Delivery delivery, Attempt attempt) throws Exception {
        guard.once(attempt, () -> handle(delivery, attempt));
    }

    /** Tells of a delivery, and does what the answer says. */
    private void handle(Delivery delivery, Attempt attempt) throws Exception {
        long number = DELIVERIES.incrementAndGet();
        CompletableFuture<Optional<Map<String, Object>>> answered = new CompletableFuture<>();
        WAITING.put(number, answered);
        tell(Map.of(
            "delivery", number,
            "body", Base64.getEncoder().encodeToString(delivery.getBody()),
            "attempt", told(attempt)));
        Optional<Map<String, Object>> failure = answered.get();
        if (failure.isPresent()) {
            throw errorOf(failure.get());
        }
    }

    private static Map<String, Object> told(Attempt attempt) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("queue", attempt.queue());
        told.put("message_id", attempt.messageId());
        told.put("retry_id", attempt.retryId());
        told.put("round", attempt.round());
        told.put("number", attempt.number());
        told.put("retry_count", attempt.retryCount());
        told.put("max_retries", attempt.maxRetries());
        told.put("is_last", attempt.isLast());
        told.put("due_ms", ms(attempt.due()));
        told.put("first_failed_ms", ms(attempt.firstFailed()));
        told.put("deadline_ms", ms(attempt.deadline()));
        return told;
    }

    private static Long ms(Instant moment) {
        return moment == null ? null : moment.toEpochMilli();
    }

    private static Exception errorOf(Map<String, Object> failure) {
        String reason = (String) failure.get("reason");
        Double after = (Double) failure.get("retry_after");
        Throwable cause = failure.get("caused_by") == null ? null : errorOf(object(failure.get("caused_by")));
        return switch ((String) failure.get("kind")) {
            case "http" -> busy(((Double) failure.get("status")).intValue(), String.valueOf(after));
            case "final" -> new Final(reason);
            case "rate_limited" -> new RateLimited(reason, after == null ? null : Duration.ofNanos((long) (after * 1e9)));
            case "shop_error" -> new ShopError(reason, cause);
            case "card_declined" -> new CardDeclined(reason, cause);
            case "shop_closed" -> new ShopClosed(reason, cause);
            default -> new Exception(reason, cause);
        };
    }

    private static RateLimited busy(int status, String retryAfter) {
        try {
            RateLimited.check(status, retryAfter);
        } catch (RateLimited limited) {
            return limited;
        }
        throw new IllegalStateException("status " + status + " is no rate limit");
    }

    private static Options optionsOf(Map<String, Object> told) {
        Options options = new Options();
        told.forEach((name, value) -> set(options, name, value));
        return options;
    }

    @SuppressWarnings("unchecked")
    private static void set(Options options, String name, Object value) {
        switch (name) {
            case "classes" -> object(value).forEach((type, errorClass) ->
                options.classify(KINDS.get(type), ErrorClass.valueOf(errorClass.toString().toUpperCase(Locale.ROOT))));
            case "owner" -> options.owner((String) value);
            case "owner_header" -> options.owner((headers, body) ->
                headers.get(value) == null ? null : headers.get(value).toString());
            case "owner_fails" -> options.owner((headers, body) -> fails());
            case "redact" -> options.redact(text -> text.replaceAll((String) value, "…"));
            case "redact_fails" -> options.redact(text -> fails());
            case "longest_reason" -> options.longestReason(((Double) value).intValue());
            case "plain" -> options.rejectPlain();
            case "report" -> options.report((Boolean) value);
            case "report_starts" -> options.reportStarts((Boolean) value);
            case "consumer" -> options.consumer((String) value);
            case "report_batch" -> options.reportBatch(((Double) value).intValue());
            case "report_seconds" -> options.reportInterval(seconds(value));
            case "pauses" -> options.pauses(((List<Object>) value).stream().map(Conformance::seconds).toList());
            default -> throw new IllegalArgumentException("no option " + name);
        }
    }

    private static Duration seconds(Object value) {
        return Duration.ofNanos((long) ((Double) value * 1e9));
    }

    private static String fails() {
        throw new IllegalStateException("a mistake in the application");
    }
}
