import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;

/** Writing and reading records. */
final class LogCases {
    private final Client client;
    private final String prefix;
    private final long epochMs;

    LogCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            cases.put("produce_" + codec, () -> produce(codec));
        }
        cases.put("acks", this::acks);
        cases.put("large_records", this::largeRecords);
        cases.put("oversized_record", this::oversizedRecord);
        cases.put("seek", this::seek);
        cases.put("auto_creation", this::autoCreation);
    }

    private String produce(String codec) throws Exception {
        for (boolean idempotent : new boolean[] {false, true}) {
            String topic = prefix + "-produce-" + codec + "-" + idempotent;
            client.create(topic, 3);
            Map<String, Object> settings =
                    Map.of("compression.type", codec, "enable.idempotence", idempotent, "linger.ms", 20);
            List<ProducerRecord<byte[], byte[]>> wanted = Records.range(topic, 3, 0, Records.COUNT, epochMs);
            List<RecordMetadata> done = client.send(wanted, settings);
            for (int number = 0; number < done.size(); number++) {
                Client.same(done.get(number).offset(), number / 3L, "acknowledged offset");
                Client.same(done.get(number).timestamp(), wanted.get(number).timestamp(), "acknowledged timestamp");
            }
            client.compare(topic, 3, wanted, 0);
        }
        return null;
    }

    private String acks() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = prefix + "-acks-" + acks;
            client.create(topic, 1);
            List<ProducerRecord<byte[], byte[]>> wanted = Records.range(topic, 1, 0, Records.COUNT, epochMs);
            client.send(wanted, Map.of("acks", acks, "enable.idempotence", false));
            client.compare(topic, 1, wanted, 0);
        }
        return null;
    }

    private String largeRecords() throws Exception {
        String topic = prefix + "-large";
        client.create(topic, 1);
        List<ProducerRecord<byte[], byte[]>> wanted = new ArrayList<>();
        for (int seed = 0; seed < 4; seed++) {
            wanted.add(new ProducerRecord<>(topic, 0, epochMs, null, Records.noise(seed, Records.LARGE_BYTES)));
        }
        client.send(wanted, Map.of());
        client.compare(topic, 1, wanted, 0);
        return null;
    }

    private String oversizedRecord() throws Exception {
        String topic = prefix + "-oversized";
        client.create(topic, 1, Map.of("max.message.bytes", "10000"));
        ProducerRecord<byte[], byte[]> large = new ProducerRecord<>(topic, 0, null, Records.noise(1, 20_000));
        Client.fails(RecordTooLargeException.class, () -> client.send(List.of(large), Map.of()));
        List<ProducerRecord<byte[], byte[]>> small = Records.range(topic, 1, 4, 5, epochMs);
        client.send(small, Map.of());
        client.compare(topic, 1, small, 0);
        return null;
    }

    private String seek() throws Exception {
        String topic = prefix + "-seek";
        client.create(topic, 1);
        client.send(Records.range(topic, 1, 0, 10, epochMs), Map.of("linger.ms", 100));
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = client.consumer(Map.of())) {
            consumer.assign(List.of(part));
            Client.same(consumer.beginningOffsets(List.of(part)).get(part), 0L, "beginning");
            Client.same(consumer.endOffsets(List.of(part)).get(part), 10L, "end");
            Map<TopicPartition, Long> times = new HashMap<>(Map.of(part, epochMs + 6_001));
            OffsetAndTimestamp found = consumer.offsetsForTimes(times).get(part);
            Client.same(found.offset(), 7L, "offset by time");
            Client.same(found.timestamp(), epochMs + 7_000, "timestamp by time");
            times.put(part, epochMs + 60_000);
            Client.same(consumer.offsetsForTimes(times).get(part), null, "offset of a time after the last record");
            // All ten are one batch: the broker sends it whole, the client skips what lies before.
            consumer.seek(part, 6);
            List<ConsumerRecord<byte[], byte[]>> rest = Client.poll(consumer, 4);
            Client.same(rest.get(0).offset(), 6L, "first offset inside of a batch");
            Client.same(consumer.currentLag(part).orElse(-1), 0L, "lag at the end");
        }
        return null;
    }

    private String autoCreation() throws Exception {
        String topic = prefix + "-auto";
        List<ProducerRecord<byte[], byte[]>> wanted = Records.range(topic, 1, 0, 10, epochMs);
        client.send(wanted, Map.of());
        client.compare(topic, 1, wanted, 0);
        return null;
    }
}
