import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;

/** Runs the cases that the harness asks for and prints one JSON line each: compat/README.md has the protocol. */
public final class Driver {
    /** One case: it returns a note, or throws. */
    interface Case {
        String run() throws Exception;
    }

    private Driver() {}

    public static void main(String[] arguments) {
        Map<String, Case> cases = new LinkedHashMap<>();
        String bootstrap = System.getenv("COMPAT_BOOTSTRAP");
        String prefix = System.getenv("COMPAT_PREFIX");
        long epochMs = Long.parseLong(System.getenv("COMPAT_EPOCH_MS"));
        try (Client client = new Client(bootstrap)) {
            new LogCases(client, prefix, epochMs).addTo(cases);
            new AdminCases(client, prefix, epochMs).addTo(cases);
            new GroupCases(client, prefix, epochMs).addTo(cases);
            new RebalanceCases(client, prefix, epochMs).addTo(cases);
            new GroupAdminCases(client, prefix, epochMs).addTo(cases);
            new FailoverCases(epochMs).addTo(cases);
            new LaterCases(client, prefix, epochMs).addTo(cases);
            for (String name : System.getenv("COMPAT_CASES").split(",")) {
                report(name, cases.get(name), System.out);
            }
        }
    }

    private static void report(String name, Case wanted, PrintStream out) {
        long started = System.nanoTime();
        boolean passed = false;
        String note;
        try {
            note = wanted == null ? "this driver has no such case" : wanted.run();
            passed = wanted != null;
        } catch (Exception | AssertionError error) {
            error.printStackTrace();
            note = error.toString();
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        out.printf("{\"case\": %s, \"passed\": %b, \"seconds\": %.3f, \"note\": %s}%n",
                quoted(name), passed, seconds, quoted(note == null ? "" : note));
        out.flush();
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\' || letter < ' ' || letter > '~') {
                out.append(String.format("\\u%04x", (int) letter));
            } else {
                out.append(letter);
            }
        }
        return out.append('"').toString();
    }
}
