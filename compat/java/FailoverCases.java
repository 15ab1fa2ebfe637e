import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Groups that lose their coordinator, or all brokers at once. These cases have brokers of their own. */
final class FailoverCases {
    private static final int PARTITIONS = 6;
    private static final int RECORDS = 60;

    private final long epochMs;

    FailoverCases(long epochMs) {
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        for (Map<String, Object> settings : List.of(RebalanceCases.CLASSIC, RebalanceCases.CONSUMER)) {
            Object protocol = settings.get("group.protocol");
            cases.put("group_failover_" + protocol, () -> run(settings, this::killCoordinator));
            cases.put("group_restart_" + protocol, () -> run(patient(settings), this::restartAll));
        }
    }

    /**
     * By default a client that reaches no broker forgets all it knows and begins again from its bootstrap addresses.
     * The leader of a classic group then takes the forgotten topics for a change and rejoins by itself.
     */
    private static Map<String, Object> patient(Map<String, Object> settings) {
        return RebalanceCases.with(settings, "metadata.recovery.strategy", "none");
    }

    /** What happens to the brokers while two members read. */
    private interface Fault {
        void happen(Brokers brokers, int coordinator) throws Exception;
    }

    private void killCoordinator(Brokers brokers, int coordinator) throws Exception {
        brokers.kill(coordinator);
    }

    private void restartAll(Brokers brokers, int coordinator) throws Exception {
        for (int nodeId : new int[] {1, 2}) {
            brokers.kill(nodeId);
        }
        for (int nodeId : new int[] {1, 2}) {
            brokers.start(nodeId);
        }
    }

    /**
     * Two members read while the fault happens. They go on in their generation with the partitions they have, nothing
     * is read twice, and whoever coordinates then lets another member join and go.
     */
    private String run(Map<String, Object> settings, Fault fault) throws Exception {
        try (Brokers brokers = new Brokers();
                Client client = new Client(brokers.bootstrap());
                Team team = new Team(client, "survivors", PARTITIONS, epochMs)) {
            List<Member> members = List.of(team.join("a", settings), team.join("b", settings));
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            team.awaitSettled();
            List<Set<Integer>> owned = members.stream().map(team::owned).toList();
            List<Integer> generations = members.stream().map(Member::generation).toList();
            CompletableFuture<Void> sending = CompletableFuture.runAsync(() -> sendAlong(team));
            Client.waitUntil(() -> team.ledger.recordsRead() >= 2 * RECORDS, "records arrive");
            long started = System.nanoTime();
            fault.happen(brokers, team.describe().coordinator().id());
            sending.get(2 * Client.WAIT_LIMIT_SECONDS, TimeUnit.SECONDS);
            team.awaitRead();
            team.sendAndRead(RECORDS);
            double seconds = (System.nanoTime() - started) / 1e9;
            Client.same(members.stream().map(Member::losses).toList(), List.of(0, 0), "partitions that were lost");
            Client.same(members.stream().map(team::owned).toList(), owned, "partitions after the fault");
            Client.same(members.stream().map(Member::generation).toList(), generations, "generation after the fault");
            Member third = team.join("c", settings);
            team.awaitShares(2, 2, 2);
            team.sendAndRead(RECORDS);
            team.leave(third);
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            team.checkUndisturbed();
            return String.format("all read %.1f s after the fault", seconds);
        }
    }

    private static void sendAlong(Team team) {
        try {
            for (int stretch = 0; stretch < 10; stretch++) {
                team.send(RECORDS);
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
