import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.OffsetMetadataTooLarge;

/** One consumer of a group: what it reads, commits and finds again. Each case runs with both group protocols. */
final class GroupCases {
    private static final int LARGEST_NOTE = 4096;

    private final Client client;
    private final String prefix;
    private final long epochMs;

    GroupCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        for (String protocol : List.of("classic", "consumer")) {
            cases.put("group_" + protocol, () -> group(protocol));
            cases.put("group_commits_" + protocol, () -> commits(protocol));
            cases.put("group_auto_commit_" + protocol, () -> autoCommit(protocol));
            cases.put("group_positions_" + protocol, () -> positions(protocol));
            cases.put("group_simple_" + protocol, () -> simple(protocol));
            cases.put("group_pattern_" + protocol, () -> pattern(protocol));
        }
        cases.put("group_re2_pattern", this::re2Pattern);
        cases.put("group_re2_invalid", this::re2Invalid);
    }

    private String group(String protocol) throws Exception {
        String topic = filled("group-" + protocol, 2, 10);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            consumer.subscribe(List.of(topic));
            Client.poll(consumer, 10);
            consumer.commitSync();
        }
        client.send(Records.range(topic, 2, 10, 12, epochMs), Map.of());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            Client.same(committed(consumer, topic, 1).offset(), 5L, "committed offset");
            consumer.subscribe(List.of(topic));
            Set<Long> offsets = new TreeSet<>();
            Client.poll(consumer, 2).forEach(record -> offsets.add(record.offset()));
            Client.same(offsets, Set.of(5L), "offsets that the second consumer reads");
        }
        Client.check(Client.get(client.admin.listGroups().all()).stream().anyMatch(g -> g.groupId().equals(topic)),
                "the group is not listed");
        return null;
    }

    /** Commits in every way there is, each found again by a consumer that comes later. */
    private String commits(String protocol) throws Exception {
        String topic = filled("commits-" + protocol, 2, 20);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            consumer.subscribe(List.of(topic));
            Client.poll(consumer, 20);
            Client.same(consumer.committed(Set.of(first)).get(first), null, "committed before any commit");
            CompletableFuture<Map<TopicPartition, OffsetAndMetadata>> told = new CompletableFuture<>();
            consumer.commitAsync(Map.of(first, new OffsetAndMetadata(3, "three")), (offsets, error) -> {
                if (error == null) {
                    told.complete(offsets);
                } else {
                    told.completeExceptionally(error);
                }
            });
            Client.waitUntil(() -> {
                consumer.poll(Duration.ofMillis(20));
                return told.isDone();
            }, "the callback of commitAsync is called");
            Client.same(told.get(1, TimeUnit.SECONDS).get(first).offset(), 3L, "offset in the callback");
            OffsetAndMetadata found = committed(consumer, topic, 0);
            Client.same(found.offset() + found.metadata(), "3three", "offset and note");
            String note = "x".repeat(LARGEST_NOTE);
            consumer.commitSync(Map.of(second, new OffsetAndMetadata(7, note)));
            Client.same(committed(consumer, topic, 1).metadata(), note, "the largest note");
            throwing(OffsetMetadataTooLarge.class,
                    () -> consumer.commitSync(Map.of(second, new OffsetAndMetadata(8, note + "x"))));
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(2)));
            Client.same(committed(consumer, topic, 0).offset(), 2L, "an offset that was committed back");
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            Client.same(committed(consumer, topic, 1).offset(), 7L, "offset of the second partition");
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<byte[], byte[]>> rest = Client.poll(consumer, 8 + 3);
            for (ConsumerRecord<byte[], byte[]> record : rest) {
                Client.check(record.offset() >= (record.partition() == 0 ? 2 : 7), "a committed record is read again");
            }
        }
        return null;
    }

    private String autoCommit(String protocol) throws Exception {
        String topic = filled("auto-commit-" + protocol, 1, 10);
        Map<String, Object> settings = Map.of("group.id", topic, "group.protocol", protocol,
                "enable.auto.commit", true, "auto.commit.interval.ms", 100);
        try (KafkaConsumer<byte[], byte[]> other = consumer(topic, protocol)) {
            try (KafkaConsumer<byte[], byte[]> consumer = client.consumer(settings)) {
                consumer.subscribe(List.of(topic));
                Client.poll(consumer, 10);
                Client.waitUntil(() -> {
                    consumer.poll(Duration.ofMillis(20));
                    return committed(other, topic, 0) != null;
                }, "the offset is committed while the consumer polls");
                client.send(Records.range(topic, 1, 10, 15, epochMs), Map.of());
                Client.poll(consumer, 5);
            }
            Client.same(committed(other, topic, 0).offset(), 15L, "offset committed by close");
        }
        return null;
    }

    private String positions(String protocol) throws Exception {
        String topic = filled("positions-" + protocol, 1, 10);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            consumer.subscribe(List.of(topic));
            Client.poll(consumer, 10);
            Client.same(consumer.position(part), 10L, "position at the end");
            Client.same(consumer.endOffsets(List.of(part)).get(part), 10L, "end offset");
            consumer.seek(part, 4);
            Client.same(consumer.position(part), 4L, "position after seek");
            Client.same(Client.poll(consumer, 6).get(0).offset(), 4L, "first offset after seek");
            consumer.seekToBeginning(List.of(part));
            Client.poll(consumer, 10);
            Client.same(consumer.currentLag(part).orElse(-1), 0L, "lag at the end");
            consumer.pause(List.of(part));
            client.send(Records.range(topic, 1, 10, 13, epochMs), Map.of());
            consumer.commitSync();
            Client.check(consumer.poll(Duration.ofMillis(200)).isEmpty(), "a paused partition is read");
            consumer.resume(List.of(part));
            Client.poll(consumer, 3);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
            consumer.subscribe(List.of(topic));
            Client.same(Client.poll(consumer, 3).get(0).offset(), 10L, "where the next consumer begins");
        }
        return null;
    }

    /** A consumer that assigns partitions itself and keeps only its offsets in the group. */
    private String simple(String protocol) throws Exception {
        String topic = filled("simple-" + protocol, 1, 10);
        TopicPartition part = new TopicPartition(topic, 0);
        for (int start : new int[] {0, 6}) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic, protocol)) {
                consumer.assign(List.of(part));
                Client.same(consumer.position(part), (long) start, "position of an assigned partition");
                Client.poll(consumer, 10 - start);
                consumer.commitSync(Map.of(part, new OffsetAndMetadata(6)));
            }
        }
        return null;
    }

    /** A pattern that the client itself applies to the names of all topics. */
    private String pattern(String protocol) throws Exception {
        String stem = "pattern-" + protocol;
        Pattern pattern = Pattern.compile(Pattern.quote(prefix + "-" + stem) + "-[a-z]+");
        return readPattern(stem, protocol, consumer -> consumer.subscribe(pattern));
    }

    /** A pattern that the broker applies: RE2's syntax, and the name must match as a whole. */
    private String re2Pattern() throws Exception {
        SubscriptionPattern pattern = new SubscriptionPattern(prefix + "-re2-(one|two|t[^w]+)");
        return readPattern("re2", "consumer", consumer -> consumer.subscribe(pattern));
    }

    private String readPattern(String stem, String protocol, Consumer<KafkaConsumer<byte[], byte[]>> subscribe)
            throws Exception {
        List<String> topics = List.of(filled(stem + "-one", 2, 10), filled(stem + "-two", 1, 5));
        filled(stem + "-two2", 1, 5);
        filled("not-" + stem + "-one", 1, 5);
        Map<String, Object> settings = Map.of("group.id", prefix + "-" + stem, "group.protocol", protocol,
                "metadata.max.age.ms", 500);
        Set<String> seen = new TreeSet<>();
        try (KafkaConsumer<byte[], byte[]> consumer = client.consumer(settings)) {
            subscribe.accept(consumer);
            Client.poll(consumer, 15).forEach(record -> seen.add(record.topic()));
            Client.same(seen, Set.copyOf(topics), "topics that match");
            // The rebalance that brings the next topic begins where the group has committed.
            consumer.commitSync();
            String late = filled(stem + "-three", 1, 4);
            Client.poll(consumer, 4).forEach(record -> seen.add(record.topic()));
            Client.check(seen.contains(late), "the topic that was created later is not among " + seen);
            Set<String> assigned = new TreeSet<>();
            consumer.assignment().forEach(part -> assigned.add(part.topic()));
            Client.same(assigned, seen, "assigned topics");
        }
        return null;
    }

    private String re2Invalid() throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(prefix + "-re2-invalid", "consumer")) {
            consumer.subscribe(new SubscriptionPattern("(never-closed"));
            List<String> said = new ArrayList<>();
            Client.waitUntil(() -> {
                try {
                    consumer.poll(Duration.ofMillis(100));
                } catch (InvalidRegularExpression error) {
                    said.add(error.getMessage());
                }
                return !said.isEmpty();
            }, "the broker refuses the expression");
            return said.get(0);
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, String protocol) {
        return client.consumer(Map.of("group.id", group, "group.protocol", protocol));
    }

    private String filled(String name, int partitions, int records) throws Exception {
        String topic = prefix + "-" + name;
        client.create(topic, partitions);
        client.send(Records.range(topic, partitions, 0, records, epochMs), Map.of());
        return topic;
    }

    private static OffsetAndMetadata committed(KafkaConsumer<byte[], byte[]> consumer, String topic, int partition) {
        TopicPartition part = new TopicPartition(topic, partition);
        return consumer.committed(Set.of(part)).get(part);
    }

    private static void throwing(Class<? extends Exception> wanted, Runnable call) {
        try {
            call.run();
        } catch (RuntimeException error) {
            Client.same(error.getClass(), wanted, "error (" + error.getMessage() + ")");
            return;
        }
        throw new AssertionError("no " + wanted.getSimpleName() + " came");
    }
}
