package tarry.client;

/** No retry would help. The message goes to review at once, with this reason. */
public class Final extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public Final(String reason) {
        super(reason);
    }

    public Final(String reason, Throwable cause) {
        super(reason, cause);
    }
}
