package tarry.client;

/** The broker did not confirm a message, or returned it. */
final class NotTakenException extends Exception {
    private static final long serialVersionUID = 1L;

    NotTakenException(String problem, Throwable cause) {
        super(problem, cause);
    }
}
