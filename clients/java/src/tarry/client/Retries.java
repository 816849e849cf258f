package tarry.client;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Consumer;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Iterator;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.Phaser;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Acknowledges messages that succeeded. For a message that failed, requests a retry and then acknowledges it.
 *
 * <p>Publishes on its own channels, on the same connection unless another is given. Any thread may use it.
 */
public final class Retries implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("tarry.client");

    /** What settles a message: an ack or a nack. */
    private interface Settling {
        void run() throws IOException;
    }

    private final Options options;
    private final Publisher publisher;
    private final Outcomes outcomes;
    private final Phaser running = new Phaser(1);
    private final ScheduledExecutorService timer;
    private volatile boolean isClosing;

    public Retries(Connection connection) {
        this(connection, new Options());
    }

    public Retries(Connection connection, Options options) {
        this(connection, options, connection);
    }

    /** Publishes on another connection than the one that consumes: during an alarm the broker reads nothing from it. */
    public Retries(Connection connection, Options options, Connection publishing) {
        this.options = options;
        this.publisher = new Publisher(publishing, options.prefix);
        this.outcomes = new Outcomes(options);
        this.timer = Executors.newSingleThreadScheduledExecutor(Retries::daemon);
        long interval = Math.max(1, options.reportInterval.toMillis());
        timer.scheduleWithFixedDelay(this::flush, interval, interval, TimeUnit.MILLISECONDS);
        connection.addShutdownListener(why -> timer.shutdown());
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "tarry-reports");
        thread.setDaemon(true);
        return thread;
    }

    /** For `basicConsume`, without automatic acknowledgement. The handler runs in the channel's thread. */
    public Consumer consumer(Channel channel, String queue, Handler handler) {
        return consumer(channel, queue, handler, Runnable::run);
    }

    /** The same, with handlers that run in an executor: as many at a time as it and `basicQos` allow. */
    public Consumer consumer(Channel channel, String queue, Handler handler, Executor executor) {
        return new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                submit(channel, queue, new Delivery(envelope, properties, body), handler, executor);
            }

            @Override
            public void handleCancel(String tag) {
                LOG.log(Level.WARNING, "the broker cancelled the consumer of {0}", queue);
            }
        };
    }

    private void submit(Channel channel, String queue, Delivery delivery, Handler handler, Executor executor) {
        if (isClosing) {
            return; // the broker delivers what is not settled again, once the channel is closed
        }
        running.register();
        started(queue, delivery);
        try {
            executor.execute(() -> {
                try {
                    handle(channel, queue, delivery, handler);
                } finally {
                    running.arriveAndDeregister();
                }
            });
        } catch (RejectedExecutionException error) {
            running.arriveAndDeregister();
            outcomes.end(delivery, queue);
            unsettled(queue, error); // requeued, it would come back to the same executor at once
        }
    }

    private void handle(Channel channel, String queue, Delivery delivery, Handler handler) {
        long began = System.nanoTime();
        try {
            handler.handle(delivery, Attempt.of(delivery, queue));
        } catch (InterruptedException stopped) { // which is not a failure of the message
            giveBack(channel, queue, delivery);
            Thread.currentThread().interrupt();
            return;
        } catch (Throwable error) { // also an Error: unsettled, the message would come again and again
            failed(channel, queue, delivery, error);
            return;
        }
        succeeded(channel, queue, delivery, Duration.ofNanos(System.nanoTime() - began));
    }

    /** Reports that an attempt begins, if the message was retried before. A consumer of this class calls it. */
    public void started(String queue, Delivery delivery) {
        outcomes.start(delivery, queue);
    }

    /** Acknowledges the message and, if it was retried before, reports the success. */
    public void succeeded(Channel channel, String queue, Delivery delivery, Duration took) {
        long tag = delivery.getEnvelope().getDeliveryTag();
        if (!settle(channel, queue, () -> channel.basicAck(tag, false))) {
            outcomes.end(delivery, queue);
        } else if (outcomes.add(delivery, queue, took)) {
            flush();
        }
    }

    /**
     * Requests a retry, and acknowledges the message once the broker has confirmed the request. If the request cannot be
     * published, the message is requeued.
     */
    public void failed(Channel channel, String queue, Delivery delivery, Throwable error) {
        outcomes.end(delivery, queue);
        Attempt attempt = Attempt.of(delivery, queue);
        Failure failure = Failure.of(error, options);
        LOG.log(Level.WARNING, attempt + " failed: " + failure.type() + ": " + failure.reason());
        if (options.rejectsPlain && failure.verdict().isPlain()) {
            settle(channel, queue, () -> channel.basicNack(delivery.getEnvelope().getDeliveryTag(), false, false));
            return;
        }
        String owner = Failure.ownerOf(options, Headers.of(delivery.getProperties()), delivery.getBody());
        ask(channel, queue, delivery, Request.of(delivery, attempt, failure, owner, publisher.frameMax()));
    }

    private void ask(Channel channel, String queue, Delivery delivery, AMQP.BasicProperties request) {
        Iterator<Duration> pauses = options.pauses.iterator();
        try {
            while (channel.isOpen()) { // if it is closed the message comes again, and a request would be a duplicate
                try {
                    publisher.request(delivery.getBody(), request);
                    settle(channel, queue, () -> channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false));
                    return;
                } catch (NotTakenException problem) {
                    if (!pauses.hasNext()) {
                        requeue(channel, queue, delivery, problem);
                        return;
                    }
                    Thread.sleep(pauses.next().toMillis());
                }
            }
            unsettled(queue, "its channel is closed");
        } catch (InterruptedException stopped) {
            giveBack(channel, queue, delivery);
            Thread.currentThread().interrupt();
        }
    }

    private void requeue(Channel channel, String queue, Delivery delivery, NotTakenException problem) {
        String id = delivery.getProperties().getMessageId();
        LOG.log(Level.ERROR, "the retry request for message " + id + " of queue " + queue
            + " could not be published, the message is requeued: " + problem.getMessage());
        giveBack(channel, queue, delivery);
    }

    private void giveBack(Channel channel, String queue, Delivery delivery) {
        outcomes.end(delivery, queue);
        settle(channel, queue, () -> channel.basicNack(delivery.getEnvelope().getDeliveryTag(), false, true));
    }

    /** If it fails, the channel is closed and the broker delivers the message again. */
    private static boolean settle(Channel channel, String queue, Settling settling) {
        try {
            synchronized (channel) {
                settling.run();
            }
            return true;
        } catch (IOException | AlreadyClosedException error) {
            unsettled(queue, error);
            return false;
        }
    }

    private static void unsettled(String queue, Object why) {
        LOG.log(Level.WARNING, "a message of queue " + queue + " was not settled and will be delivered again: " + why);
    }

    /** Sends the pending reports now. Problems are logged, not thrown. */
    public void flush() {
        byte[] report = outcomes.take();
        if (report == null) {
            return;
        }
        try {
            publisher.report(report);
        } catch (IOException | RuntimeException error) {
            LOG.log(Level.WARNING, "some starts or successes could not be reported: " + error);
        }
    }

    /** Waits for the handlers that are running, sends the pending reports and closes its own channels. */
    @Override
    public void close() {
        isClosing = true;
        running.arriveAndAwaitAdvance();
        timer.shutdown();
        outcomes.forgetStarts();
        flush();
        publisher.close();
    }
}
