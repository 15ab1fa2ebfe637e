import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;

/** Several members of a group: who gets what when they come and go. `Ledger` watches over all of these cases. */
final class RebalanceCases {
    private static final int PARTITIONS = 6;
    private static final int RECORDS = 60;
    static final Map<String, Object> CONSUMER = Map.of("group.protocol", "consumer");
    // Classic members hear of a rebalance in the answer to a heartbeat. The client's default of 3 s only makes us wait.
    static final Map<String, Object> CLASSIC = Map.of("group.protocol", "classic", "heartbeat.interval.ms", 300);

    private final Client client;
    private final String prefix;
    private final long epochMs;

    RebalanceCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        cases.put("share_range", () -> share("range", classic(RangeAssignor.class), false));
        cases.put("share_roundrobin", () -> share("roundrobin", classic(RoundRobinAssignor.class), false));
        cases.put("share_sticky", () -> share("sticky", classic(StickyAssignor.class), false));
        cases.put("share_cooperative", () -> share("cooperative", classic(CooperativeStickyAssignor.class), true));
        cases.put("share_consumer", () -> share("consumer", CONSUMER, true));
        cases.put("share_consumer_uniform", () -> share("uniform", consumer("uniform"), true));
        cases.put("share_consumer_range", () -> share("consumer-range", consumer("range"), false));
        cases.put("static_classic", this::staticClassic);
        cases.put("static_consumer", this::staticConsumer);
        cases.put("more_partitions_classic", () -> morePartitions("classic", CLASSIC));
        cases.put("more_partitions_consumer", () -> morePartitions("consumer", CONSUMER));
        cases.put("migrate_eager", () -> migrate("eager", classic(RangeAssignor.class)));
        cases.put("migrate_cooperative", () -> migrate("cooperative", classic(CooperativeStickyAssignor.class)));
    }

    /** Two share, a third joins, one leaves. `keeps`: who stays keeps every partition it has when another leaves. */
    private String share(String name, Map<String, Object> settings, boolean keeps) throws Exception {
        try (Team team = team("share-" + name)) {
            Member first = team.join("a", settings);
            Member second = team.join("b", settings);
            double two = team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            team.join("c", settings);
            double three = team.awaitShares(2, 2, 2);
            team.sendAndRead(RECORDS);
            Set<Integer> before = team.owned(first);
            int changes = first.changes();
            long leaving = System.nanoTime();
            team.leave(second);
            team.awaitShares(3, 3);
            double left = (System.nanoTime() - leaving) / 1e9;
            team.sendAndRead(RECORDS);
            if (keeps) {
                Set<Integer> after = team.owned(first);
                Client.check(after.containsAll(before), "a had " + before + " and has " + after);
                Client.same(first.changes() - changes, 1, "changes for a, which gets one more partition");
            }
            team.checkUndisturbed();
            return String.format("two in %.2f s, third in %.2f s, leave in %.2f s", two, three, left);
        }
    }

    private String staticClassic() throws Exception {
        try (Team team = team("static-classic")) {
            Member second = restart(team, CLASSIC);
            // A second consumer with the id of a living one takes its place, and the older one is told so.
            team.ledger.strike(second.name);
            Member third = team.join("a3", instance(CLASSIC, "a"));
            Client.waitUntil(() -> second.error() instanceof FencedInstanceIdException, "the older member is fenced");
            Client.waitUntil(() -> team.owned(third).size() == 3, "the newer one has its partitions");
            team.forget(second);
            team.sendAndRead(RECORDS);
            team.leave(third, GroupMembershipOperation.LEAVE_GROUP);
            team.awaitShares(PARTITIONS);
            team.checkUndisturbed();
        }
        return null;
    }

    private String staticConsumer() throws Exception {
        try (Team team = team("static-consumer")) {
            Member second = restart(team, CONSUMER);
            // A second consumer with the id of a living one is refused, and the older one goes on.
            Member third = team.join("a3", instance(CONSUMER, "a"));
            Client.waitUntil(() -> third.error() instanceof UnreleasedInstanceIdException, "the newer one is refused");
            team.forget(third);
            Client.same(second.error(), null, "error of the older one");
            team.sendAndRead(RECORDS);
            team.leave(second, GroupMembershipOperation.LEAVE_GROUP);
            team.awaitShares(PARTITIONS);
            team.checkUndisturbed();
        }
        return null;
    }

    /** Restarts one of two static members: it finds its partitions again, and the other one notices nothing. */
    private Member restart(Team team, Map<String, Object> settings) throws Exception {
        Member first = team.join("a", instance(settings, "a"));
        Member other = team.join("b", instance(settings, "b"));
        team.awaitShares(3, 3);
        team.sendAndRead(RECORDS);
        team.awaitSettled();
        Set<Integer> before = team.owned(first);
        int changes = other.changes();
        int generation = other.generation();
        team.leave(first);
        team.send(RECORDS);
        Client.check(team.describe().members().stream().anyMatch(one -> one.groupInstanceId().equals(Optional.of("a"))),
                "the static member that closed is no longer in the group");
        Member second = team.join("a2", instance(settings, "a"));
        team.awaitShares(3, 3);
        team.awaitRead();
        Client.same(team.owned(second), before, "partitions after the restart");
        Client.same(other.changes(), changes, "changes for the other member");
        Client.same(other.generation(), generation, "generation of the other member");
        return second;
    }

    private String morePartitions(String protocol, Map<String, Object> protocolSettings) throws Exception {
        Map<String, Object> settings = with(protocolSettings, "metadata.max.age.ms", 500);
        try (Team team = team("more-" + protocol)) {
            team.join("a", settings);
            team.join("b", settings);
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            team.grow(10);
            double grown = team.awaitShares(5, 5);
            team.sendAndRead(RECORDS);
            team.checkUndisturbed();
            return String.format("new partitions owned in %.2f s", grown);
        }
    }

    /** Moves a living group from the classic to the consumer protocol, member by member, and back again. */
    private String migrate(String name, Map<String, Object> classic) throws Exception {
        try (Team team = team("migrate-" + name)) {
            Member oldFirst = team.join("a", classic);
            Member oldSecond = team.join("b", classic);
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            Client.same(team.describe().type(), GroupType.CLASSIC, "type before the upgrade");
            Member newFirst = team.join("c", CONSUMER);
            team.awaitShares(2, 2, 2);
            team.awaitStable();
            team.sendAndRead(RECORDS);
            ConsumerGroupDescription mixed = team.describe();
            Client.same(mixed.type(), GroupType.CONSUMER, "type with members of both protocols");
            for (MemberDescription one : mixed.members()) {
                Client.same(one.upgraded().orElseThrow(), one.clientId().equals("c"), one.clientId() + " is upgraded");
            }
            team.leave(oldFirst);
            Member newSecond = team.join("d", CONSUMER);
            team.awaitShares(2, 2, 2);
            team.leave(oldSecond);
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            Client.same(team.describe().type(), GroupType.CONSUMER, "type after the upgrade");
            team.join("e", classic);
            team.awaitShares(2, 2, 2);
            team.sendAndRead(RECORDS);
            team.leave(newFirst);
            team.awaitShares(3, 3);
            team.leave(newSecond);
            team.awaitShares(PARTITIONS);
            team.sendAndRead(RECORDS);
            Client.waitUntil(() -> team.describe().type() == GroupType.CLASSIC, "the group is classic again");
            team.join("f", classic);
            team.awaitShares(3, 3);
            team.sendAndRead(RECORDS);
            team.checkUndisturbed();
        }
        return null;
    }

    private Team team(String name) throws Exception {
        return new Team(client, prefix + "-" + name, PARTITIONS, epochMs);
    }

    private static Map<String, Object> classic(Class<?> assignor) {
        return with(CLASSIC, "partition.assignment.strategy", assignor.getName());
    }

    private static Map<String, Object> consumer(String assignor) {
        return with(CONSUMER, "group.remote.assignor", assignor);
    }

    private static Map<String, Object> instance(Map<String, Object> settings, String id) {
        return with(settings, "group.instance.id", id);
    }

    static Map<String, Object> with(Map<String, Object> settings, String name, Object value) {
        Map<String, Object> more = new HashMap<>(settings);
        more.put(name, value);
        return more;
    }
}
