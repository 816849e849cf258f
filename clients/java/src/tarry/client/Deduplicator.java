package tarry.client;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Suppresses duplicates, for handlers that cannot tolerate the rare duplicate of an at-least-once delivery. Remembers in
 * memory what this process completed, up to a number of attempts; the oldest are forgotten.
 */
public final class Deduplicator {
    /** What is to be done once. */
    @FunctionalInterface
    public interface Work {
        void run() throws Exception;
    }

    private final Map<String, Boolean> done;
    private final Map<String, Turn> turns = new HashMap<>();

    private static final class Turn {
        int waiting;
    }

    public Deduplicator() {
        this(100_000);
    }

    public Deduplicator(int most) {
        done = new LinkedHashMap<>() {
            private static final long serialVersionUID = 1L;

            @Override
            protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
                return size() > most;
            }
        };
    }

    /**
     * Runs the work unless it was done before, and returns whether it ran. If it throws, it counts as not done. The same
     * attempt delivered again while the first is running waits for its outcome.
     */
    public boolean once(Attempt attempt, Work work) throws Exception {
        String key = attempt.key();
        if (key == null) {
            work.run();
            return true;
        }
        Turn turn = enter(key);
        try {
            synchronized (turn) {
                return unlessDone(key, work);
            }
        } finally {
            leave(key, turn);
        }
    }

    private boolean unlessDone(String key, Work work) throws Exception {
        synchronized (turns) {
            if (done.containsKey(key)) {
                return false;
            }
        }
        work.run();
        synchronized (turns) {
            done.put(key, true);
        }
        return true;
    }

    private Turn enter(String key) {
        synchronized (turns) {
            Turn turn = turns.computeIfAbsent(key, missing -> new Turn());
            turn.waiting++;
            return turn;
        }
    }

    private void leave(String key, Turn turn) {
        synchronized (turns) {
            if (--turn.waiting == 0) {
                turns.remove(key);
            }
        }
    }
}
