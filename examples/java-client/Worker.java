// A worker that says why a message failed: the client publishes the request, confirms it, and reports successes.
//
//   java -cp amqp-client.jar:slf4j-api.jar:tarry-client.jar Worker.java

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import tarry.client.Attempt;
import tarry.client.Retries;

public final class Worker {
    private static final String QUEUE = System.getenv().getOrDefault("QUEUE", "orders");

    private Worker() {}

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("RABBITMQ_URL"));
        Connection connection = factory.newConnection();
        Channel channel = connection.createChannel();
        channel.queueDeclare(QUEUE, true, false, false, Map.of("x-queue-type", "quorum"));
        channel.basicQos(10);
        Retries retries = new Retries(connection);
        String tag = channel.basicConsume(QUEUE, false, retries.consumer(channel, QUEUE, Worker::handle));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(channel, tag, retries)));
    }

    private static void handle(Delivery delivery, Attempt attempt) {
        String order = new String(delivery.getBody(), StandardCharsets.UTF_8);
        System.out.printf("{\"order\": %d, \"attempt\": %d}%n", field(order, "id"), attempt.number());
        if (attempt.number() < field(order, "succeeds_at")) {
            throw new IllegalStateException("attempt " + attempt.number() + " was too early");
        }
    }

    private static void stop(Channel channel, String tag, Retries retries) {
        try {
            channel.basicCancel(tag);
            retries.close();
            channel.getConnection().close();
        } catch (Exception problem) {
            System.err.println("not stopped in order, so its messages are delivered again: " + problem);
        }
    }

    private static long field(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*(\\d+)").matcher(json);
        return found.find() ? Long.parseLong(found.group(1)) : 0;
    }
}
