package tarry.client;

import com.rabbitmq.client.Delivery;

/** Handles one delivery. It neither acknowledges nor rejects: it returns, or it throws. */
@FunctionalInterface
public interface Handler {
    void handle(Delivery delivery, Attempt attempt) throws Exception;
}
