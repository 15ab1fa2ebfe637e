import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Topics, configs and the cluster, through the Admin client. */
final class AdminCases {
    private final Client client;
    private final String prefix;
    private final long epochMs;

    AdminCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        cases.put("api_versions", this::apiVersions);
        cases.put("describe_cluster", this::describeCluster);
        cases.put("create_topics", this::createTopics);
        cases.put("list_offsets", this::listOffsets);
        cases.put("topic_configs", this::topicConfigs);
        cases.put("broker_configs", this::brokerConfigs);
        cases.put("delete_records", this::deleteRecords);
        cases.put("create_partitions", this::createPartitions);
        cases.put("delete_topics", this::deleteTopics);
        cases.put("log_dirs", this::logDirs);
        cases.put("producer_states", this::producerStates);
        cases.put("config_resources", this::configResources);
    }

    private String apiVersions() throws Exception {
        return "features " + new TreeSet<>(
                Client.get(client.admin.describeFeatures().featureMetadata()).finalizedFeatures().keySet());
    }

    private String describeCluster() throws Exception {
        DescribeClusterResult found = client.admin.describeCluster();
        Client.check(!Client.get(found.clusterId()).isEmpty(), "no cluster id");
        Collection<Node> nodes = Client.get(found.nodes());
        Client.check(nodes.contains(Client.get(found.controller())), "the controller is none of the nodes");
        return nodes.size() + " node(s)";
    }

    private String createTopics() throws Exception {
        String one = prefix + "-create-1";
        String several = prefix + "-create-12";
        client.create(one, 1);
        client.create(several, 12);
        Map<String, TopicDescription> found = Client.get(client.admin.describeTopics(List.of(one, several)).allTopicNames());
        Client.same(found.get(one).partitions().size(), 1, "partitions");
        Client.same(found.get(several).partitions().size(), 12, "partitions");
        Uuid id = found.get(several).topicId();
        Client.check(!id.equals(Uuid.ZERO_UUID), "the topic has no id");
        Map<Uuid, TopicDescription> byId =
                Client.get(client.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds());
        Client.same(byId.get(id).name(), several, "name by id");
        Client.check(Client.get(client.admin.listTopics().names()).containsAll(List.of(one, several)), "not listed");
        Client.fails(TopicExistsException.class, () -> createAgain(one, 1, false));
        Client.fails(InvalidTopicException.class, () -> createAgain("bad name!", 1, false));
        Client.fails(InvalidPartitionsException.class, () -> createAgain(prefix + "-create-0", 0, false));
        createAgain(prefix + "-only-validated", 3, true);
        Client.fails(UnknownTopicOrPartitionException.class,
                () -> Client.get(client.admin.describeTopics(List.of(prefix + "-only-validated")).allTopicNames()));
        return null;
    }

    private Void createAgain(String topic, int partitions, boolean validateOnly) throws Exception {
        NewTopic wanted = new NewTopic(topic, partitions, (short) 1);
        return Client.get(
                client.admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(validateOnly)).all());
    }

    private String listOffsets() throws Exception {
        String topic = prefix + "-offsets";
        client.create(topic, 1);
        client.send(Records.range(topic, 1, 0, 10, epochMs), Map.of());
        offset(topic, OffsetSpec.earliest(), 0);
        offset(topic, OffsetSpec.latest(), 10);
        offset(topic, OffsetSpec.maxTimestamp(), 9);
        offset(topic, OffsetSpec.forTimestamp(epochMs + 3_500), 4);
        offset(topic, OffsetSpec.forTimestamp(epochMs + 4_000), 4);
        offset(topic, OffsetSpec.forTimestamp(epochMs + 60_000), -1);
        offset(topic, OffsetSpec.earliestLocal(), 0);
        offset(topic, OffsetSpec.latestTiered(), -1);
        return null;
    }

    private void offset(String topic, OffsetSpec spec, long wanted) throws Exception {
        TopicPartition part = new TopicPartition(topic, 0);
        ListOffsetsResultInfo found = Client.get(client.admin.listOffsets(Map.of(part, spec)).partitionResult(part));
        Client.same(found.offset(), wanted, "offset of " + spec.getClass().getSimpleName());
    }

    private String topicConfigs() throws Exception {
        String topic = prefix + "-configs";
        client.create(topic, 1, Map.of("retention.ms", "3600000"));
        ConfigEntry set = config(topic, "retention.ms");
        Client.same(set.value(), "3600000", "retention.ms as created");
        Client.same(set.source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        ConfigEntry unset = config(topic, "max.message.bytes");
        Client.same(unset.source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG, "source of a default");
        Client.same(unset.type(), ConfigEntry.ConfigType.INT, "type of max.message.bytes");
        alter(topic, "max.message.bytes", "2000000", OpType.SET);
        Client.same(config(topic, "max.message.bytes").value(), "2000000", "max.message.bytes as altered");
        Client.same(config(topic, "retention.ms").value(), "3600000", "the other config");
        alter(topic, "max.message.bytes", null, OpType.DELETE);
        Client.same(config(topic, "max.message.bytes").value(), unset.value(), "max.message.bytes after its removal");
        alter(topic, "cleanup.policy", "compact", OpType.APPEND);
        Client.same(config(topic, "cleanup.policy").value(), "delete,compact", "cleanup.policy with one more");
        alter(topic, "cleanup.policy", "delete", OpType.SUBTRACT);
        Client.same(config(topic, "cleanup.policy").value(), "compact", "cleanup.policy with one less");
        Client.fails(InvalidConfigurationException.class, () -> alter(topic, "no.such.config", "1", OpType.SET));
        Client.fails(InvalidConfigurationException.class, () -> alter(topic, "retention.ms", "soon", OpType.SET));
        return null;
    }

    /** Changes what no other case notices, for one broker and for all, and leaves both as they were. */
    private String brokerConfigs() throws Exception {
        String name = "log.cleaner.delete.retention.ms";
        Node node = Client.get(client.admin.describeCluster().nodes()).iterator().next();
        ConfigResource one = new ConfigResource(ConfigResource.Type.BROKER, node.idString());
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigEntry first = config(one, name);
        Client.same(config(one, "broker.id").value(), node.idString(), "broker.id");
        Client.same(config(one, "broker.id").isReadOnly(), true, "whether broker.id is fixed");
        alter(all, name, "86400004", OpType.SET);
        try {
            awaitConfig(one, name, "86400004", ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG);
            alter(one, name, "86400005", OpType.SET);
            awaitConfig(one, name, "86400005", ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG);
            Client.same(config(all, name).value(), "86400004", name + " of all brokers");
        } finally {
            alter(one, name, null, OpType.DELETE);
            alter(all, name, null, OpType.DELETE);
        }
        awaitConfig(one, name, first.value(), ConfigEntry.ConfigSource.DEFAULT_CONFIG);
        Client.fails(InvalidRequestException.class, () -> alter(one, "broker.id", "77", OpType.SET));
        Client.fails(InvalidRequestException.class, () -> alter(all, name, "soon", OpType.SET));
        Client.fails(InvalidConfigurationException.class, () -> alter(one, name, "1", OpType.APPEND));
        return null;
    }

    /** Apache Kafka applies a change a moment after it has answered. */
    private void awaitConfig(ConfigResource resource, String name, String value, ConfigEntry.ConfigSource source)
            throws Exception {
        long deadline = System.nanoTime() + 30_000_000_000L;
        ConfigEntry found = config(resource, name);
        while (!found.value().equals(value) && System.nanoTime() < deadline) {
            Thread.sleep(50);
            found = config(resource, name);
        }
        Client.same(found.value(), value, name);
        Client.same(found.source(), source, "source of " + name);
    }

    private ConfigEntry config(ConfigResource resource, String name) throws Exception {
        return Client.get(client.admin.describeConfigs(List.of(resource)).all()).get(resource).get(name);
    }

    private Void alter(ConfigResource resource, String name, String value, OpType type) throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
        return Client.get(client.admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private ConfigEntry config(String topic, String name) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config found = Client.get(client.admin.describeConfigs(List.of(resource)).all()).get(resource);
        return found.get(name);
    }

    private Void alter(String topic, String name, String value, OpType type) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
        return Client.get(client.admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private String deleteRecords() throws Exception {
        String topic = prefix + "-delete-records";
        client.create(topic, 1);
        List<ProducerRecord<byte[], byte[]>> wanted = Records.range(topic, 1, 0, 10, epochMs);
        client.send(wanted, Map.of());
        TopicPartition part = new TopicPartition(topic, 0);
        long low = Client.get(client.admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(4)))
                .lowWatermarks().get(part)).lowWatermark();
        Client.same(low, 4L, "low watermark");
        offset(topic, OffsetSpec.earliest(), 4);
        client.compare(topic, 1, wanted.subList(4, 10), 4);
        return null;
    }

    private String createPartitions() throws Exception {
        String topic = prefix + "-partitions";
        client.create(topic, 1);
        client.send(Records.range(topic, 1, 0, 5, epochMs), Map.of());
        Client.get(client.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
        Client.fails(InvalidPartitionsException.class, () -> Client.get(
                client.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all()));
        Client.waitUntil(() -> partitions(topic) == 3, "the topic has 3 partitions");
        List<ProducerRecord<byte[], byte[]>> all = new ArrayList<>(Records.range(topic, 1, 0, 5, epochMs));
        List<ProducerRecord<byte[], byte[]>> more = Records.range(topic, 3, 20, 29, epochMs);
        client.send(more, Map.of());
        all.addAll(more);
        client.compare(topic, 3, all, 0);
        return null;
    }

    private int partitions(String topic) throws Exception {
        return Client.get(client.admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
    }

    private String deleteTopics() throws Exception {
        String topic = prefix + "-delete";
        client.create(topic, 2);
        client.send(Records.range(topic, 2, 0, 4, epochMs), Map.of());
        Uuid first = Client.get(client.admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).topicId();
        Client.get(client.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(first))).all());
        Client.waitUntil(() -> !Client.get(client.admin.listTopics().names()).contains(topic), "the topic is gone");
        Client.fails(UnknownTopicOrPartitionException.class,
                () -> Client.get(client.admin.deleteTopics(List.of(topic)).all()));
        client.create(topic, 1);
        Uuid second = Client.get(client.admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).topicId();
        Client.check(!first.equals(second), "the new topic has the id of the deleted one");
        List<ProducerRecord<byte[], byte[]>> wanted = Records.range(topic, 1, 7, 9, epochMs);
        client.send(wanted, Map.of());
        client.compare(topic, 1, wanted, 0);
        return null;
    }

    private String logDirs() throws Exception {
        String topic = prefix + "-dirs";
        client.create(topic, 2);
        client.send(Records.range(topic, 2, 0, 10, epochMs), Map.of());
        List<Integer> ids = Client.get(client.admin.describeCluster().nodes()).stream().map(Node::id).toList();
        long found = Client.get(client.admin.describeLogDirs(ids).allDescriptions()).values().stream()
                .flatMap(dirs -> dirs.values().stream()).flatMap(dir -> dir.replicaInfos().entrySet().stream())
                .filter(entry -> entry.getKey().topic().equals(topic) && entry.getValue().size() > 0).count();
        Client.check(found >= 2, "log dirs name " + found + " partitions of " + topic + " that hold something");
        return null;
    }

    private String producerStates() throws Exception {
        String topic = prefix + "-producers";
        client.create(topic, 1);
        client.send(Records.range(topic, 1, 0, 10, epochMs), Map.of("enable.idempotence", true));
        TopicPartition part = new TopicPartition(topic, 0);
        var states = Client.get(client.admin.describeProducers(List.of(part)).partitionResult(part)).activeProducers();
        Client.same(states.size(), 1, "producers");
        Client.same(states.get(0).lastSequence(), 9, "last sequence");
        return null;
    }

    private String configResources() throws Exception {
        Client.get(client.admin.listConfigResources().all());
        return null;
    }
}
