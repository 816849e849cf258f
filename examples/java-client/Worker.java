// A worker that says why: the contract's headers are all it takes. What succeeds after a retry is reported.
//
//   java -cp amqp-client.jar:slf4j-api.jar Worker.java

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public final class Worker {
    private static final String QUEUE = System.getenv().getOrDefault("QUEUE", "orders");

    private final Channel channel;
    private final Channel requests; // of its own: it confirms, and may be closed
    private final Channel reports; // of its own: channels belong to one thread, and reports go out by a timer
    private final List<String> outcomes = new ArrayList<>();
    private boolean returned; // set by the connection's thread, before the confirm that is waited for

    private Worker(Connection connection) throws IOException {
        channel = connection.createChannel();
        requests = connection.createChannel();
        requests.confirmSelect();
        reports = connection.createChannel();
        requests.addReturnListener((code, text, exchange, key, properties, body) -> returned = true);
        channel.queueDeclare(QUEUE, true, false, false, Map.of("x-queue-type", "quorum"));
        channel.basicQos(10);
    }

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("RABBITMQ_URL"));
        new Worker(factory.newConnection()).consume();
    }

    private void consume() throws IOException {
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        timer.scheduleWithFixedDelay(this::flush, 1, 1, TimeUnit.SECONDS);
        channel.basicConsume(QUEUE, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                    throws IOException {
                settle(envelope, properties, body);
            }
        });
    }

    /** The order is always: publish, confirm, acknowledge. A cut in between makes a duplicate, never a loss. */
    private void settle(Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws IOException {
        long started = System.currentTimeMillis();
        try {
            handle(new String(body, StandardCharsets.UTF_8), 1 + (int) number(properties, "tarry-count"));
        } catch (Exception error) {
            try {
                askForRetry(envelope, properties, body, error);
            } catch (Exception problem) {
                System.err.println("the request was not taken: " + problem);
                channel.basicNack(envelope.getDeliveryTag(), false, true);
                return;
            }
            channel.basicAck(envelope.getDeliveryTag(), false);
            return;
        }
        channel.basicAck(envelope.getDeliveryTag(), false);
        report(properties, System.currentTimeMillis() - started);
    }

    private static void handle(String order, int attempt) {
        System.out.printf("{\"order\": %d, \"attempt\": %d}%n", field(order, "id"), attempt);
        if (attempt < field(order, "succeeds_at")) {
            throw new IllegalStateException("attempt " + attempt + " was too early");
        }
    }

    /** Everything of the message but what the broker or an earlier failure wrote on it, and what is to be said of this one. */
    private void askForRetry(Envelope envelope, AMQP.BasicProperties properties, byte[] body, Exception error)
            throws Exception {
        Map<String, Object> headers = new HashMap<>(headersOf(properties));
        headers.keySet().removeIf(name -> name.matches("(x-|error_).*|CC|BCC|retry_after_ms"));
        headers.put("original_queue", QUEUE);
        headers.put("original_exchange", envelope.getExchange());
        headers.put("original_routing_key", envelope.getRoutingKey());
        headers.put("error_type", error.getClass().getName());
        headers.put("error_reason", String.valueOf(error.getMessage()));
        AMQP.BasicProperties request =
            properties.builder().deliveryMode(2).expiration(null).userId(null).headers(headers).build();
        returned = false;
        requests.basicPublish("retry.intake", "", true, request, body);
        requests.waitForConfirmsOrDie(10_000);
        if (returned) {
            throw new IOException("retry.intake leads to no queue");
        }
    }

    /** Only messages that tarry brought back are of interest. Many in one report are cheap, and there is no hurry. */
    private void report(AMQP.BasicProperties properties, long durationMs) {
        if (!QUEUE.equals(String.valueOf(headersOf(properties).get("tarry-queue")))) {
            return;
        }
        String outcome = String.format(
            "{\"id\": \"%s\", \"round\": %d, \"retry_count\": %d, \"at_ms\": %d, \"duration_ms\": %d}",
            headersOf(properties).get("tarry-id"), number(properties, "tarry-round"), number(properties, "tarry-count"),
            System.currentTimeMillis(), durationMs);
        synchronized (outcomes) {
            outcomes.add(outcome);
        }
    }

    private void flush() {
        String report;
        synchronized (outcomes) {
            if (outcomes.isEmpty()) {
                return;
            }
            report = "{\"outcomes\": [" + String.join(", ", outcomes) + "]}";
            outcomes.clear();
        }
        try {
            AMQP.BasicProperties about = new AMQP.BasicProperties.Builder().deliveryMode(2).build();
            reports.basicPublish("retry.reports", "", about, report.getBytes(StandardCharsets.UTF_8));
        } catch (IOException problem) {
            System.err.println("some successes could not be reported: " + problem);
        }
    }

    private static Map<String, Object> headersOf(AMQP.BasicProperties properties) {
        return properties.getHeaders() == null ? Map.of() : properties.getHeaders();
    }

    private static long number(AMQP.BasicProperties properties, String name) {
        Object value = headersOf(properties).get(name);
        return value instanceof Number ? ((Number) value).longValue() : 0;
    }

    private static long field(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*(\\d+)").matcher(json);
        return found.find() ? Long.parseLong(found.group(1)) : 0;
    }
}
