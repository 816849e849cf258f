import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import tarry.client.Attempt;
import tarry.client.Deduplicator;
import tarry.client.RateLimited;

/** What the cases of all clients do not reach. Ends with an error at the first that fails. */
public final class UnitTests {
    private static int tests;

    private UnitTests() {}

    public static void main(String[] arguments) throws Exception {
        aRetryAfterIsSecondsOrADate();
        aDeduplicatorRunsAnAttemptThatFailedAgain();
        aDeduplicatorForgetsTheOldest();
        aDeduplicatorLetsTheSecondDeliveryWait();
        messagesThatShareOnlyAnIdAreTwoAttempts();
        headersThatAreInvalidCountAsAbsent();
        System.out.println(tests + " tests passed");
    }

    private static void check(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }

    private static Duration waitOf(int status, String retryAfter) {
        try {
            RateLimited.check(status, retryAfter);
        } catch (RateLimited limited) {
            return limited.retryAfter();
        }
        return Duration.ZERO;
    }

    private static void aRetryAfterIsSecondsOrADate() {
        check(Duration.ofMillis(1_500), waitOf(429, "1.5"));
        check(null, waitOf(503, "soon"));
        check(null, waitOf(503, null));
        check(Duration.ZERO, waitOf(500, "5"));
        check(true, waitOf(503, "Fri, 01 Jan 2100 00:00:00 GMT").toDays() > 10_000);
        tests++;
    }

    private static Attempt attempt(String id, String body, Map<String, Object> headers) {
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().messageId(id).headers(headers).build();
        return Attempt.of(new Delivery(new Envelope(1, false, "", "orders"), properties, body.getBytes()), "orders");
    }

    private static void aDeduplicatorRunsAnAttemptThatFailedAgain() throws Exception {
        Deduplicator guard = new Deduplicator();
        Attempt first = attempt("1", "", null);
        try {
            guard.once(first, () -> {
                throw new IllegalStateException("no");
            });
            throw new AssertionError("it must fail");
        } catch (IllegalStateException wanted) {
            check("no", wanted.getMessage());
        }
        check(true, guard.once(first, () -> { }));
        check(false, guard.once(first, () -> { }));
        tests++;
    }

    private static void aDeduplicatorForgetsTheOldest() throws Exception {
        Deduplicator guard = new Deduplicator(1);
        check(true, guard.once(attempt("1", "", null), () -> { }));
        check(true, guard.once(attempt("2", "", null), () -> { }));
        check(true, guard.once(attempt("1", "", null), () -> { }));
        tests++;
    }

    private static void aDeduplicatorLetsTheSecondDeliveryWait() throws Exception {
        Deduplicator guard = new Deduplicator();
        AtomicInteger runs = new AtomicInteger();
        CountDownLatch isRunning = new CountDownLatch(1);
        CountDownLatch go = new CountDownLatch(1);
        ExecutorService pool = Executors.newFixedThreadPool(2);
        Future<Boolean> first = pool.submit(() -> guard.once(attempt("1", "", null), () -> {
            isRunning.countDown();
            go.await();
            runs.incrementAndGet();
        }));
        isRunning.await();
        Future<Boolean> second = pool.submit(() -> guard.once(attempt("1", "", null), runs::incrementAndGet));
        go.countDown();
        check(true, first.get());
        check(false, second.get());
        check(1, runs.get());
        pool.shutdown();
        tests++;
    }

    private static void messagesThatShareOnlyAnIdAreTwoAttempts() {
        check(false, attempt("1", "a", null).key().equals(attempt("1", "b", null).key()));
        check(attempt("1", "a", Map.of("k", new byte[] {1})).key(), attempt("1", "a", Map.of("k", new byte[] {1})).key());
        check(false, attempt("1", "a", Map.of("k", 1)).key().equals(attempt("1", "a", Map.of("k", 2)).key()));
        check(null, attempt(null, "a", null).key());
        tests++;
    }

    private static void headersThatAreInvalidCountAsAbsent() {
        Attempt found = attempt("1", "", Map.of("tarry-id", 5, "tarry-queue", "orders", "tarry-count", -1, "tarry-due-ms", "x"));
        check(null, found.retryId());
        check(1L, found.number());
        check(null, found.due());
        check(false, found.isLast());
        tests++;
    }
}
