import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Groups and transactions: what Headrace does not serve yet. They pass with Apache Kafka. */
final class LaterCases {
    private final Client client;
    private final String prefix;
    private final long epochMs;

    LaterCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        cases.put("group_classic", () -> group("classic"));
        cases.put("group_consumer", () -> group("consumer"));
        cases.put("transactions", this::transactions);
    }

    private String group(String protocol) throws Exception {
        String topic = prefix + "-group-" + protocol;
        client.create(topic, 2);
        client.send(Records.range(topic, 2, 0, 10, epochMs), Map.of());
        Map<String, Object> settings = Map.of("group.id", topic, "group.protocol", protocol);
        try (KafkaConsumer<byte[], byte[]> consumer = client.consumer(settings)) {
            consumer.subscribe(List.of(topic));
            Client.poll(consumer, 10);
            consumer.commitSync();
        }
        TopicPartition part = new TopicPartition(topic, 1);
        try (KafkaConsumer<byte[], byte[]> consumer = client.consumer(settings)) {
            Client.same(consumer.committed(Set.of(part)).get(part).offset(), 5L, "committed offset");
        }
        Client.check(Client.get(client.admin.listGroups().all()).stream().anyMatch(g -> g.groupId().equals(topic)),
                "the group is not listed");
        return null;
    }

    private String transactions() throws Exception {
        String topic = prefix + "-transactions";
        client.create(topic, 1);
        List<ProducerRecord<byte[], byte[]>> records = Records.range(topic, 1, 0, 6, epochMs);
        try (KafkaProducer<byte[], byte[]> producer = client.producer(Map.of("transactional.id", topic))) {
            producer.initTransactions();
            producer.beginTransaction();
            records.subList(0, 3).forEach(producer::send);
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            records.subList(3, 6).forEach(producer::send);
            producer.commitTransaction();
        }
        List<ConsumerRecord<byte[], byte[]>> got =
                client.read(topic, 1, 3, Map.of("isolation.level", "read_committed"));
        for (int number = 0; number < 3; number++) {
            String difference = Records.difference(got.get(number), records.get(number + 3));
            Client.check(difference == null, "record " + number + " differs: " + difference);
        }
        return null;
    }
}
