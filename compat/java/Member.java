import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/** One consumer of a group, on a thread of its own as applications have it: it polls, and commits what it has read. */
final class Member implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(50);

    final String name;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Ledger ledger;
    private final Thread thread;
    private volatile GroupMembershipOperation leaving;
    private volatile int changes;
    private volatile int losses;
    private volatile int generation;
    private volatile Throwable error;
    private boolean uncommitted;

    /** `subscribe` names what is to be read; it is called with the consumer on the member's own thread. */
    Member(String name, KafkaConsumer<byte[], byte[]> consumer, Ledger ledger, Consumer<Member> subscribe) {
        this.name = name;
        this.consumer = consumer;
        this.ledger = ledger;
        this.thread = new Thread(() -> run(subscribe), "member " + name);
        this.thread.start();
    }

    KafkaConsumer<byte[], byte[]> consumer() {
        return consumer;
    }

    /** How often some partition was assigned or revoked: it stays the same while rebalances spare this member. */
    int changes() {
        return changes;
    }

    /** How often partitions were lost, because the coordinator had given the member up. */
    int losses() {
        return losses;
    }

    /** The generation (classic) or member epoch of the latest poll. */
    int generation() {
        return generation;
    }

    /** What ended the member, or null while it runs and after it was closed. */
    Throwable error() {
        return error;
    }

    /** Closes the consumer as the client does it by default: a static member stays in the group. */
    void close() {
        close(GroupMembershipOperation.DEFAULT);
    }

    void close(GroupMembershipOperation operation) {
        leaving = operation;
        try {
            thread.join(TimeUnit.SECONDS.toMillis(Client.WAIT_LIMIT_SECONDS));
        } catch (InterruptedException interrupted) {
            throw new AssertionError("interrupted while member " + name + " closed", interrupted);
        }
        Client.check(!thread.isAlive(), "member " + name + " did not close in time");
    }

    private void run(Consumer<Member> subscribe) {
        try {
            subscribe.accept(this);
            while (leaving == null) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                records.forEach(record -> ledger.read(name, record));
                generation = consumer.groupMetadata().generationId();
                uncommitted |= !records.isEmpty();
                commit();
            }
        } catch (RuntimeException | AssertionError ended) {
            error = ended;
        } finally {
            consumer.close(CloseOptions.groupMembershipOperation(
                    leaving == null ? GroupMembershipOperation.DEFAULT : leaving));
        }
    }

    private void commit() {
        if (!uncommitted) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        consumer.assignment().forEach(part -> next.put(part, new OffsetAndMetadata(consumer.position(part))));
        try {
            consumer.commitSync(next);
            next.forEach((part, offset) -> ledger.committed(part, offset.offset()));
            uncommitted = false;
        } catch (RebalanceInProgressException notNow) {
            // The next turn of the loop, or the callback before a partition is given back, tries again.
            uncommitted = true;
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        changes += partitions.isEmpty() ? 0 : 1;
        ledger.take(name, partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        changes += partitions.isEmpty() ? 0 : 1;
        commit();
        ledger.release(name, partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        losses++;
        ledger.release(name, partitions);
    }
}
