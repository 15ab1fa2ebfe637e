import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.common.GroupState;

/** The members of one group over one topic of this name, and the records that were sent to them. */
final class Team implements AutoCloseable {
    final String group;
    final Ledger ledger = new Ledger();
    private final Client client;
    private final long epochMs;
    private final List<Member> members = new ArrayList<>();
    private int partitions;
    private volatile int sent;

    Team(Client client, String group, int partitions, long epochMs) throws Exception {
        this.client = client;
        this.group = group;
        this.partitions = partitions;
        this.epochMs = epochMs;
        // As many replicas as the broker has them by default: a pair of Apache Kafka's brokers would need two.
        NewTopic topic = new NewTopic(group, Optional.of(partitions), Optional.empty());
        Client.get(client.admin.createTopics(List.of(topic)).all());
    }

    /** Lets one more member join. Only its name is compared, so a restarted one may have a name of its own. */
    Member join(String name, Map<String, Object> settings) {
        return join(name, settings, member -> member.consumer().subscribe(List.of(group), member));
    }

    Member join(String name, Map<String, Object> settings, Consumer<Member> subscribe) {
        Map<String, Object> all = new HashMap<>(Map.of("group.id", group, "client.id", name));
        all.putAll(settings);
        Member member = new Member(name, client.consumer(all), ledger, subscribe);
        members.add(member);
        return member;
    }

    /** Closes a member and forgets it. */
    void leave(Member member, GroupMembershipOperation operation) {
        member.close(operation);
        members.remove(member);
        Client.check(member.error() == null, "member " + member.name + " ended with " + member.error());
    }

    void leave(Member member) {
        leave(member, GroupMembershipOperation.DEFAULT);
    }

    /** Takes a member that has ended off the list; how it ended is the caller's to judge. */
    void forget(Member member) {
        member.close();
        members.remove(member);
    }

    /** Gives the topic more partitions. */
    void grow(int count) throws Exception {
        Client.get(client.admin.createPartitions(Map.of(group, NewPartitions.increaseTo(count))).all());
        partitions = count;
    }

    /** Waits until the members have so many partitions each, in any order, and all partitions have an owner. */
    double awaitShares(int... shares) throws Exception {
        long started = System.nanoTime();
        int[] wanted = shares.clone();
        Arrays.sort(wanted);
        await(() -> Arrays.equals(shares(), wanted), () -> "shares of " + Arrays.toString(wanted) + ", not " + owned());
        return (System.nanoTime() - started) / 1e9;
    }

    /** Sends some records to every partition, and waits until the members have read each of them. */
    void sendAndRead(int count) throws Exception {
        send(count);
        awaitRead();
    }

    void send(int count) throws Exception {
        client.send(Records.range(group, partitions, sent, sent + count, epochMs), Map.of());
        sent += count;
    }

    /** Waits until every record that was sent has been read by some member, and is committed. */
    void awaitRead() throws Exception {
        await(() -> ledger.recordsRead() == sent && ledger.recordsCommitted() == sent,
                () -> sent + " records, not " + ledger.recordsRead() + ", " + ledger.recordsCommitted() + " committed");
    }

    /** Checks what must be true of members that nobody disturbed: no clash, and every record once. */
    void checkUndisturbed() {
        ledger.checkFaults();
        Client.same(ledger.recordsReadAgain(), 0L, "records that were read again");
    }

    Set<Integer> owned(Member member) {
        return ledger.ownedBy(member.name);
    }

    ConsumerGroupDescription describe() throws Exception {
        return Client.get(client.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    void awaitStable() throws Exception {
        Client.waitUntil(() -> describe().groupState() == GroupState.STABLE, "the group is stable");
    }

    /** Waits until the group is stable, and its members know their epoch too, where a group has one. */
    void awaitSettled() throws Exception {
        Client.waitUntil(() -> {
            ConsumerGroupDescription found = describe();
            return found.groupState() == GroupState.STABLE && found.groupEpoch().stream()
                    .allMatch(epoch -> members.stream().allMatch(member -> member.generation() == epoch));
        }, "the group is stable, and its members are in its epoch");
    }

    private int[] shares() {
        return members.stream().mapToInt(member -> owned(member).size()).sorted().toArray();
    }

    private String owned() {
        Map<String, Set<Integer>> all = new HashMap<>();
        members.forEach(member -> all.put(member.name, owned(member)));
        return all.toString();
    }

    private void await(Callable<Boolean> condition, Callable<String> what) throws Exception {
        try {
            Client.waitUntil(() -> {
                checkAlive();
                return condition.call();
            }, "");
        } catch (AssertionError error) {
            throw new AssertionError("waiting for " + what.call() + ": " + error.getMessage(), error);
        }
    }

    private void checkAlive() {
        for (Member member : members) {
            Client.check(member.error() == null, "member " + member.name + " ended with " + member.error());
        }
    }

    @Override
    public void close() {
        for (Member member : members) {
            member.close(GroupMembershipOperation.LEAVE_GROUP);
        }
    }
}
