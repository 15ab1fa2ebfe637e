import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What the cases do again and again: create, send, read, compare. */
final class Client implements AutoCloseable {
    static final long WAIT_LIMIT_SECONDS = 60;

    final Admin admin;
    private final String bootstrap;

    Client(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(settings(Map.of()));
    }

    Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "client.id", "compat-java"));
        all.putAll(more);
        return all;
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        return new KafkaProducer<>(settings(more), new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", false));
        all.putAll(more);
        return new KafkaConsumer<>(settings(all), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    void create(String topic, int partitions) throws Exception {
        create(topic, partitions, Map.of());
    }

    void create(String topic, int partitions, Map<String, String> configs) throws Exception {
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.of((short) 1)).configs(configs);
        get(admin.createTopics(List.of(wanted)).all());
    }

    /** Sends all, and waits until each is acknowledged. */
    List<RecordMetadata> send(List<ProducerRecord<byte[], byte[]>> records, Map<String, Object> settings)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<RecordMetadata> done = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (ProducerRecord<byte[], byte[]> record : records) {
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> one : sent) {
                done.add(one.get(WAIT_LIMIT_SECONDS, TimeUnit.SECONDS));
            }
        }
        return done;
    }

    /** Reads `count` records from the beginning, without a group. */
    List<ConsumerRecord<byte[], byte[]>> read(String topic, int partitions, int count, Map<String, Object> settings) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            List<TopicPartition> all = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                all.add(new TopicPartition(topic, partition));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            return poll(consumer, count);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_LIMIT_SECONDS);
        while (found.size() < count) {
            check(System.nanoTime() < deadline, found.size() + " of " + count + " records were read in time");
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        same(found.size(), count, "number of records");
        return found;
    }

    /** Reads the topic from its beginning and compares every byte. */
    void compare(String topic, int partitions, List<ProducerRecord<byte[], byte[]>> wanted, long startOffset) {
        Map<Integer, Integer> at = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> got : read(topic, partitions, wanted.size(), Map.of())) {
            int seen = at.merge(got.partition(), 1, Integer::sum) - 1;
            same(got.offset(), startOffset + seen, "offset in partition " + got.partition());
            ProducerRecord<byte[], byte[]> expected = wanted.stream()
                    .filter(record -> record.partition() == got.partition()).skip(seen).findFirst().orElseThrow();
            String difference = Records.difference(got, expected);
            check(difference == null, topic + "-" + got.partition() + "@" + got.offset() + " differs: " + difference);
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(WAIT_LIMIT_SECONDS, TimeUnit.SECONDS);
    }

    /** Checks that the call fails, with an error of that class. */
    static void fails(Class<? extends Exception> wanted, Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (ExecutionException error) {
            same(error.getCause().getClass(), wanted, "error (" + error.getCause().getMessage() + ")");
            return;
        }
        throw new AssertionError("no " + wanted.getSimpleName() + " came");
    }

    static void waitUntil(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_LIMIT_SECONDS);
        while (!condition.call()) {
            check(System.nanoTime() < deadline, "still not so: " + what);
            Thread.sleep(50);
        }
    }

    static void check(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }

    static void same(Object got, Object wanted, String what) {
        check(Objects.equals(got, wanted), what + ": got " + got + ", wanted " + wanted);
    }

    @Override
    public void close() {
        admin.close();
    }
}
