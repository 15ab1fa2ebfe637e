import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Who owns which partition, what was read and what was committed, as all members of a group tell it.
 *
 * Must stay true: a partition has one owner at a time, only its owner reads it, and what is committed is not read
 * again. All members live in this process, so what one of them tells first also happened first.
 */
final class Ledger {
    private final Map<TopicPartition, String> owners = new HashMap<>();
    private final Map<TopicPartition, Long> committed = new HashMap<>();
    private final Map<String, Integer> reads = new HashMap<>();
    private final List<String> faults = new ArrayList<>();

    synchronized void take(String member, Collection<TopicPartition> partitions) {
        for (TopicPartition part : partitions) {
            String before = owners.put(part, member);
            if (before != null) {
                faults.add(part + " went to " + member + " while " + before + " had it");
            }
        }
    }

    synchronized void release(String member, Collection<TopicPartition> partitions) {
        partitions.forEach(part -> owners.remove(part, member));
    }

    /** Forgets what a member owns that is about to be put out of the group, and is not told so in time. */
    synchronized void strike(String member) {
        owners.values().removeIf(member::equals);
    }

    synchronized void read(String member, ConsumerRecord<byte[], byte[]> record) {
        TopicPartition part = new TopicPartition(record.topic(), record.partition());
        if (!member.equals(owners.get(part))) {
            faults.add(member + " read " + part + " which belongs to " + owners.get(part));
        }
        if (record.offset() < committed.getOrDefault(part, 0L)) {
            faults.add(member + " read " + part + "@" + record.offset() + ", " + committed.get(part) + " is committed");
        }
        reads.merge(part + "@" + record.offset(), 1, Integer::sum);
    }

    synchronized void committed(TopicPartition part, long offset) {
        committed.merge(part, offset, Math::max);
    }

    synchronized Set<Integer> ownedBy(String member) {
        Set<Integer> found = new TreeSet<>();
        owners.forEach((part, owner) -> {
            if (owner.equals(member)) {
                found.add(part.partition());
            }
        });
        return found;
    }

    /** How many different records were read. */
    synchronized int recordsRead() {
        return reads.size();
    }

    /** How many records lie before the offsets that were committed. */
    synchronized long recordsCommitted() {
        return committed.values().stream().mapToLong(Long::longValue).sum();
    }

    /** How many records were read more than once. */
    synchronized long recordsReadAgain() {
        return reads.values().stream().filter(times -> times > 1).count();
    }

    synchronized void checkFaults() {
        Client.check(faults.isEmpty(), faults.size() + " fault(s): " + faults.stream().limit(5).toList());
    }
}
