package tarry.client;

import java.util.Map;
import java.util.function.Function;

/** Describes one failure: limited in size, and without anything that the redaction hook removes. */
record Failure(String type, String reason, Verdict verdict) {
    private static final System.Logger LOG = System.getLogger("tarry.client");
    private static final int LONGEST_TYPE = 200;
    private static final int LONGEST_OWNER = 255;
    private static final int DEEPEST = 8; // how many chained causes are examined: the chain may be endless

    /** Never throws: a redaction hook or a message that fails must not cost the message its retry. */
    static Failure of(Throwable error, Options options) {
        return new Failure(typeName(error), reasonOf(error, options), verdictOf(error, options));
    }

    /** The same with a reason of at most so many characters. */
    Failure cut(int most) {
        return new Failure(type, cut(reason, most), verdict);
    }

    /** `java.net.SocketTimeoutException`: the name that a policy matches with a glob. */
    private static String typeName(Throwable error) {
        String name = error.getClass().getName();
        return name.substring(Math.max(0, name.length() - LONGEST_TYPE));
    }

    private static String reasonOf(Throwable error, Options options) {
        String text;
        try {
            text = String.valueOf(error.getMessage());
        } catch (RuntimeException failed) {
            text = "(its text could not be produced)";
        }
        try {
            text = String.valueOf(options.redact.apply(text));
        } catch (RuntimeException failed) {
            text = "(its text was withheld: the redaction hook failed with " + typeName(failed) + ")";
        }
        return cut(text.replace("\0", "\\x00"), options.longestReason);
    }

    /** At most so many characters, of which none is half of one. */
    private static String cut(String text, int most) {
        if (text.codePointCount(0, text.length()) <= most) {
            return text;
        }
        return text.substring(0, text.offsetByCodePoints(0, most - 1)) + "…";
    }

    private static Verdict verdictOf(Throwable error, Options options) {
        try {
            return judge(error, options);
        } catch (RuntimeException failed) {
            return Verdict.PLAIN;
        }
    }

    /** The first verdict along the chain of causes. */
    private static Verdict judge(Throwable error, Options options) {
        Throwable found = error;
        for (int depth = 0; depth < DEEPEST && found != null; depth++) {
            Verdict verdict = lookUp(found, options);
            if (verdict != null) {
                return verdict;
            }
            found = found.getCause();
        }
        return Verdict.PLAIN;
    }

    /** The entry of the error's own type, else that of its nearest base class. */
    private static Verdict lookUp(Throwable error, Options options) {
        for (Class<?> type = error.getClass(); type != null; type = type.getSuperclass()) {
            Function<Throwable, Verdict> entry = options.classes.get(type);
            Verdict found = entry == null ? null : entry.apply(error);
            if (found != null) {
                return found;
            }
        }
        if (error instanceof RateLimited limited) {
            return new Verdict(ErrorClass.RATE_LIMITED, limited.retryAfter());
        }
        return error instanceof Final ? new Verdict(ErrorClass.FINAL, null) : null;
    }

    /** Whom a message belongs to. Never throws: a bad owner must not cost the message its retry. */
    static String ownerOf(Options options, Map<String, Object> headers, byte[] body) {
        try {
            String found = options.owner.apply(headers, body);
            if (found == null || found.isEmpty()) {
                return null;
            }
            if (found.codePointCount(0, found.length()) > LONGEST_OWNER || found.indexOf('\0') >= 0) {
                throw new IllegalArgumentException("an owner has up to " + LONGEST_OWNER + " characters");
            }
            return found;
        } catch (RuntimeException failed) {
            String told = "the owner of a message could not be found, its retry request names none";
            LOG.log(System.Logger.Level.ERROR, told, failed);
            return null;
        }
    }
}
