import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Transactions: what Headrace does not serve yet. They pass with Apache Kafka. */
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
        cases.put("transactions", this::transactions);
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
