import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** The records that all drivers write: driver_kit.py says what they are. */
final class Records {
    static final int COUNT = 60;
    static final int LARGE_BYTES = 1_000_000;

    private Records() {}

    static List<ProducerRecord<byte[], byte[]>> range(String topic, int partitions, int start, int end, long epochMs) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = start; number < end; number++) {
            records.add(record(topic, (number - start) % partitions, number, epochMs));
        }
        return records;
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int partition, int number, long epochMs) {
        byte[] key = number % 5 == 0 ? null : number % 5 == 1 ? new byte[0] : bytes("key-" + number);
        byte[] value = number % 7 == 0 ? null : number % 7 == 1 ? new byte[0] : pattern(number, number * 37);
        List<Header> headers = switch (number % 3) {
            case 0 -> List.of();
            case 1 -> List.of(new RecordHeader("trace", bytes("a")), new RecordHeader("trace", bytes("b")));
            default -> List.of(
                    new RecordHeader("empty", new byte[0]),
                    new RecordHeader("null", (byte[]) null),
                    new RecordHeader("bytes", new byte[] {0, (byte) 0xff, (byte) 0x80}));
        };
        return new ProducerRecord<>(topic, partition, epochMs + number * 1000L, key, value, headers);
    }

    static byte[] pattern(int seed, int sizeBytes) {
        byte[] out = new byte[sizeBytes];
        for (int at = 0; at < sizeBytes; at++) {
            out[at] = (byte) (seed * 31 + at * 7);
        }
        return out;
    }

    static byte[] noise(int seed, int sizeBytes) {
        byte[] out = new byte[sizeBytes];
        int state = seed;
        for (int at = 0; at < sizeBytes; at++) {
            state = (state * 1103515245 + 12345) & 0x7fffffff;
            out[at] = (byte) (state >> 16);
        }
        return out;
    }

    /** Says how the two differ, or null if no byte does. */
    static String difference(ConsumerRecord<byte[], byte[]> got, ProducerRecord<byte[], byte[]> wanted) {
        if (!Arrays.equals(got.key(), wanted.key())) {
            return "key";
        }
        if (!Arrays.equals(got.value(), wanted.value())) {
            return "value";
        }
        if (got.timestamp() != wanted.timestamp()) {
            return "timestamp " + got.timestamp();
        }
        return Arrays.equals(got.headers().toArray(), wanted.headers().toArray()) ? null : "headers " + got.headers();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
