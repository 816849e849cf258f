package tarry.client;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.Map;
import java.util.NavigableMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Publishes on channels of its own: requests mandatory and confirmed, reports neither. Any thread may use it. */
final class Publisher {
    private static final int CONFIRM_SECONDS = 30; // after that the message counts as not accepted
    private static final int FRAME_MAX = 131_072;
    private static final AMQP.BasicProperties REPORT = new AMQP.BasicProperties.Builder()
        .contentType("application/vnd.tarry.outcomes+json").deliveryMode(2).build();

    private final Connection connection;
    private final String intake;
    private final String reportsExchange;
    private Requests requests;
    private Channel reports;

    Publisher(Connection connection, String prefix) {
        this.connection = connection;
        this.intake = prefix + "intake";
        this.reportsExchange = prefix + "reports";
    }

    int frameMax() {
        return connection.getFrameMax() > 0 ? connection.getFrameMax() : FRAME_MAX;
    }

    /** Returns once the broker has accepted the message; throws in every other case. */
    void request(byte[] body, AMQP.BasicProperties properties) throws NotTakenException, InterruptedException {
        Requests channel = null;
        try {
            channel = requestChannel();
            String problem = channel.publish(body, properties).get(CONFIRM_SECONDS, TimeUnit.SECONDS);
            if (problem != null) {
                throw new NotTakenException(problem, null);
            }
        } catch (TimeoutException error) {
            throw new NotTakenException("no answer from the broker for " + CONFIRM_SECONDS + " seconds", error);
        } catch (ExecutionException error) {
            throw new NotTakenException(String.valueOf(error.getCause().getMessage()), error.getCause());
        } catch (IOException | RuntimeException error) {
            retire(channel); // it may have counted a message that was never sent
            throw new NotTakenException(error.toString(), error);
        }
    }

    /** Returns once the report is written to the connection. */
    synchronized void report(byte[] body) throws IOException {
        try {
            if (reports == null || !reports.isOpen()) {
                reports = opened();
            }
            reports.basicPublish(reportsExchange, "", REPORT, body);
        } catch (ShutdownSignalException error) {
            throw new IOException(error);
        }
    }

    synchronized void close() {
        retire(requests);
        close(reports);
    }

    private synchronized Requests requestChannel() throws IOException {
        if (requests == null || requests.isRetired || !requests.channel.isOpen()) {
            requests = new Requests(opened());
        }
        return requests;
    }

    private Channel opened() throws IOException {
        Channel channel = connection.createChannel();
        if (channel == null) {
            throw new IOException("the connection has no channel left");
        }
        return channel;
    }

    private static void retire(Requests retired) {
        if (retired != null) {
            retired.retire();
        }
    }

    private static void close(Channel channel) {
        try {
            if (channel != null && channel.isOpen()) {
                channel.close();
            }
        } catch (IOException | TimeoutException | ShutdownSignalException closedAlready) {
            // by the other side
        }
    }

    /** A channel, and who waits for its confirms. */
    private final class Requests {
        final Channel channel;
        private final NavigableMap<Long, CompletableFuture<String>> waiting = new ConcurrentSkipListMap<>();
        private final Map<String, String> returned = new ConcurrentHashMap<>();
        private volatile boolean isRetired;

        Requests(Channel channel) throws IOException {
            this.channel = channel;
            channel.confirmSelect();
            // The exchange is a fanout, so the key is free to tell returned messages from others.
            channel.addReturnListener((code, text, exchange, key, properties, body) -> returned.put(key, text));
            channel.addConfirmListener(
                (tag, multiple) -> end(tag, multiple, false), (tag, multiple) -> end(tag, multiple, true));
            channel.addShutdownListener(this::endAll);
        }

        /** Completes with what is wrong, or with null. */
        synchronized CompletableFuture<String> publish(byte[] body, AMQP.BasicProperties properties) throws IOException {
            CompletableFuture<String> confirmed = new CompletableFuture<>();
            long tag = channel.getNextPublishSeqNo();
            waiting.put(tag, confirmed);
            try {
                channel.basicPublish(intake, String.valueOf(tag), true, properties, body);
            } catch (IOException | RuntimeException error) {
                waiting.remove(tag);
                throw error;
            }
            return confirmed;
        }

        /** No more messages on this channel. It is closed once nothing waits for its confirms. */
        void retire() {
            isRetired = true;
            closeIfIdle();
        }

        /** Runs in the connection's thread, which must not wait: another may hold a lock and wait for the broker. */
        private void end(long tag, boolean multiple, boolean isRefused) {
            NavigableMap<Long, CompletableFuture<String>> ended =
                multiple ? waiting.headMap(tag, true) : waiting.subMap(tag, true, tag, true);
            // On old brokers, once a full queue has refused a publish, the channel keeps refusing.
            isRetired |= isRefused;
            for (Long one : ended.keySet()) {
                String text = returned.remove(String.valueOf(one));
                CompletableFuture<String> confirmed = waiting.remove(one);
                String problem = text == null ? null : intake + " leads to no queue (" + text + ")";
                if (confirmed != null) {
                    confirmed.complete(isRefused ? "the broker refused it" : problem);
                }
            }
            closeIfIdle();
        }

        private void endAll(ShutdownSignalException why) {
            waiting.values().forEach(confirmed -> confirmed.completeExceptionally(why));
            waiting.clear();
        }

        /** On a thread of its own: the connection's thread must not wait for the broker's answer. */
        private void closeIfIdle() {
            if (isRetired && waiting.isEmpty()) {
                CompletableFuture.runAsync(() -> close(channel));
            }
        }
    }
}
