import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Two brokers that belong to one case, which may kill them and start them again: compat/broker_pair.py runs them. */
final class Brokers implements AutoCloseable {
    private static final Pattern ADDRESS = Pattern.compile("\"([^\"]+:\\d+)\"");

    private final Process process;
    private final BufferedWriter orders;
    private final BufferedReader answers;
    private final List<String> addresses = new ArrayList<>();

    /** Returns when both serve. */
    Brokers() throws IOException {
        process = new ProcessBuilder(System.getenv("COMPAT_PAIR_PYTHON"), "-m", "compat.broker_pair")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        orders = process.outputWriter(StandardCharsets.UTF_8);
        answers = process.inputReader(StandardCharsets.UTF_8);
        Matcher found = ADDRESS.matcher(hear());
        while (found.find()) {
            addresses.add(found.group(1));
        }
        Client.same(addresses.size(), 2, "brokers of this case");
    }

    String bootstrap() {
        return String.join(",", addresses);
    }

    /** Kills a broker as if the power went, and returns when it is dead. Node ids count from 1. */
    void kill(int nodeId) throws IOException {
        order("kill", nodeId);
    }

    /** Starts a killed broker at its old address, and returns when it serves. */
    void start(int nodeId) throws IOException {
        order("start", nodeId);
    }

    private void order(String verb, int nodeId) throws IOException {
        orders.write(verb + " " + (nodeId - 1) + "\n");
        orders.flush();
        hear();
    }

    private String hear() throws IOException {
        String line = answers.readLine();
        Client.check(line != null, "the brokers of this case have ended");
        return line;
    }

    /** They end when their input does; this waits until they have, so that they do not slow the next case. */
    @Override
    public void close() {
        try {
            orders.close();
            process.onExit().join();
        } catch (IOException error) {
            process.destroyForcibly();
        }
    }
}
