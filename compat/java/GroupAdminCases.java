import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ClassicGroupState;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** Groups through the Admin client: listed, described, their offsets moved, their members put out, deleted. */
final class GroupAdminCases {
    private static final int PARTITIONS = 4;
    private static final int RECORDS = 20;

    private final Client client;
    private final Admin admin;
    private final String prefix;
    private final long epochMs;

    GroupAdminCases(Client client, String prefix, long epochMs) {
        this.client = client;
        this.admin = client.admin;
        this.prefix = prefix;
        this.epochMs = epochMs;
    }

    void addTo(Map<String, Driver.Case> cases) {
        cases.put("list_groups", this::listGroups);
        cases.put("describe_classic", this::describeClassic);
        cases.put("describe_consumer", this::describeConsumer);
        cases.put("describe_unknown", this::describeUnknown);
        cases.put("list_group_offsets", this::listGroupOffsets);
        cases.put("alter_group_offsets", this::alterGroupOffsets);
        for (Map<String, Object> settings : List.of(RebalanceCases.CLASSIC, RebalanceCases.CONSUMER)) {
            Object protocol = settings.get("group.protocol");
            cases.put("change_offsets_in_use_" + protocol, () -> changeOffsetsInUse(settings));
            cases.put("delete_group_" + protocol, () -> deleteGroup(settings));
            cases.put("remove_members_" + protocol, () -> removeMembers(settings));
        }
        cases.put("group_configs", this::groupConfigs);
    }

    private String listGroups() throws Exception {
        String simple = prefix + "-list-simple";
        client.create(simple, 1);
        alter(simple, simple, 0, 1);
        try (Team classic = team("list-classic");
                Team consumer = team("list-consumer");
                Team left = team("list-left")) {
            classic.join("a", RebalanceCases.CLASSIC);
            consumer.join("a", RebalanceCases.CONSUMER);
            Member last = left.join("a", RebalanceCases.CONSUMER);
            for (Team team : List.of(classic, consumer, left)) {
                team.awaitShares(PARTITIONS);
                team.awaitStable();
            }
            left.leave(last);
            Map<String, String> wanted = new TreeMap<>(Map.of(
                    simple, "Classic/Empty/",
                    classic.group, "Classic/Stable/consumer",
                    consumer.group, "Consumer/Stable/consumer",
                    left.group, "Consumer/Empty/consumer"));
            Client.same(listed(new ListGroupsOptions()), wanted, "all groups");
            filtered(new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC)), wanted, simple, classic.group);
            filtered(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER)), wanted, consumer.group, left.group);
            filtered(new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY)), wanted, simple, left.group);
            filtered(new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE, GroupState.DEAD)), wanted,
                    classic.group, consumer.group);
            filtered(new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))
                    .withTypes(Set.of(GroupType.CONSUMER)), wanted, consumer.group);
            filtered(new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE)), wanted);
            filtered(ListGroupsOptions.forConsumerGroups(), wanted, simple, classic.group, consumer.group, left.group);
            Client.same(consumerGroups(), wanted.keySet(), "what the older call lists");
        }
        return null;
    }

    private void filtered(ListGroupsOptions options, Map<String, String> all, String... names) throws Exception {
        Map<String, String> wanted = new TreeMap<>(all);
        wanted.keySet().retainAll(Set.of(names));
        Client.same(listed(options), wanted, "groups by " + options.types() + options.groupStates());
    }

    private Map<String, String> listed(ListGroupsOptions options) throws Exception {
        Map<String, String> found = new TreeMap<>();
        for (GroupListing one : Client.get(admin.listGroups(options).all())) {
            if (one.groupId().startsWith(prefix + "-list-")) {
                found.put(one.groupId(), one.type().map(GroupType::toString).orElse("?") + "/"
                        + one.groupState().map(GroupState::toString).orElse("?") + "/" + one.protocol());
            }
        }
        return found;
    }

    /** The call that applications have had since before there were types of groups. */
    @SuppressWarnings("removal")
    private Set<String> consumerGroups() throws Exception {
        return Client.get(admin.listConsumerGroups().all()).stream().map(one -> one.groupId())
                .filter(name -> name.startsWith(prefix + "-list-")).collect(Collectors.toCollection(TreeSet::new));
    }

    private String describeClassic() throws Exception {
        try (Team team = team("describe-classic")) {
            team.join("a", RebalanceCases.with(RebalanceCases.CLASSIC, "group.instance.id", "static"));
            team.join("b", RebalanceCases.CLASSIC);
            team.awaitShares(2, 2);
            team.awaitStable();
            ConsumerGroupDescription found = team.describe();
            checkDescribed(found, team);
            Client.same(found.type(), GroupType.CLASSIC, "type");
            Client.same(found.partitionAssignor(), "range", "assignor");
            Client.same(found.groupEpoch(), Optional.empty(), "epoch of a classic group");
            ClassicGroupDescription classic =
                    Client.get(admin.describeClassicGroups(List.of(team.group)).all()).get(team.group);
            Client.same(classic.state(), ClassicGroupState.STABLE, "state");
            Client.same(classic.protocol(), "consumer", "protocol type");
            Client.same(classic.protocolData(), "range", "protocol");
            Client.same(classic.members().size(), 2, "members");
        }
        return null;
    }

    private String describeConsumer() throws Exception {
        try (Team team = team("describe-consumer")) {
            team.join("a", RebalanceCases.with(RebalanceCases.CONSUMER, "group.instance.id", "static"));
            team.join("b", RebalanceCases.CONSUMER);
            team.awaitShares(2, 2);
            team.awaitStable();
            ConsumerGroupDescription found = team.describe();
            checkDescribed(found, team);
            Client.same(found.type(), GroupType.CONSUMER, "type");
            Client.same(found.partitionAssignor(), "uniform", "assignor");
            int epoch = found.groupEpoch().orElseThrow();
            Client.same(found.targetAssignmentEpoch().orElseThrow(), epoch, "epoch of the target assignment");
            for (MemberDescription one : found.members()) {
                Client.same(one.memberEpoch().orElseThrow(), epoch, "epoch of " + one.clientId());
                Client.same(one.targetAssignment().orElseThrow(), one.assignment(), "target of " + one.clientId());
                Client.same(one.upgraded(), Optional.of(true), one.clientId() + " is upgraded");
            }
            return "epoch " + epoch;
        }
    }

    private void checkDescribed(ConsumerGroupDescription found, Team team) {
        Client.same(found.groupState(), GroupState.STABLE, "state");
        Client.check(found.coordinator().port() > 0, "no coordinator");
        Client.check(!found.isSimpleConsumerGroup(), "a group with members is called simple");
        Set<TopicPartition> all = new HashSet<>();
        for (MemberDescription one : found.members()) {
            Client.check(!one.consumerId().isEmpty() && !one.host().isEmpty(), "a member without id or host");
            Client.same(one.groupInstanceId(), one.clientId().equals("a") ? Optional.of("static") : Optional.empty(),
                    "instance id of " + one.clientId());
            Set<Integer> owned = one.assignment().topicPartitions().stream().map(TopicPartition::partition)
                    .collect(Collectors.toCollection(TreeSet::new));
            Client.same(owned, team.ledger.ownedBy(one.clientId()), "assignment of " + one.clientId());
            all.addAll(one.assignment().topicPartitions());
        }
        Client.same(all.size(), PARTITIONS, "assigned partitions");
    }

    private String describeUnknown() throws Exception {
        String unknown = prefix + "-no-such-group";
        Client.fails(GroupIdNotFoundException.class,
                () -> Client.get(admin.describeConsumerGroups(List.of(unknown)).all()));
        Client.fails(GroupIdNotFoundException.class,
                () -> Client.get(admin.describeClassicGroups(List.of(unknown)).all()));
        String left = prefix + "-describe-left";
        client.create(left, 1);
        alter(left, left, 0, 1);
        ConsumerGroupDescription found = Client.get(admin.describeConsumerGroups(List.of(left)).all()).get(left);
        Client.same(found.groupState(), GroupState.EMPTY, "state of a group that has only offsets");
        Client.same(found.members().size(), 0, "its members");
        Client.check(found.isSimpleConsumerGroup(), "it is not called simple");
        return null;
    }

    /** Asks for several groups in one request: one that is unknown, one with a partition that nobody committed. */
    private String listGroupOffsets() throws Exception {
        String topic = prefix + "-list-offsets";
        client.create(topic, 3);
        String first = topic + "-1";
        String second = topic + "-2";
        String unknown = topic + "-3";
        alter(first, topic, 0, 7);
        alter(first, topic, 1, 8);
        alter(second, topic, 2, 9);
        TopicPartition never = new TopicPartition(topic, 2);
        Map<String, ListConsumerGroupOffsetsSpec> asked = Map.of(
                first, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(new TopicPartition(topic, 1), never)),
                second, new ListConsumerGroupOffsetsSpec(),
                unknown, new ListConsumerGroupOffsetsSpec());
        for (boolean stable : new boolean[] {false, true}) {
            Map<String, Map<TopicPartition, OffsetAndMetadata>> found = Client.get(admin.listConsumerGroupOffsets(
                    asked, new ListConsumerGroupOffsetsOptions().requireStable(stable)).all());
            Client.same(found.get(first).get(new TopicPartition(topic, 1)).offset(), 8L, "offset of the first group");
            Client.check(found.get(first).containsKey(never), "a partition that was asked for is missing");
            Client.same(found.get(first).get(never), null, "offset that nobody committed");
            Client.same(found.get(second).keySet(), Set.of(never), "all partitions of the second group");
            Client.same(found.get(second).get(never).offset(), 9L, "offset of the second group");
            Client.same(found.get(unknown), Map.of(), "offsets of an unknown group");
        }
        return null;
    }

    private String alterGroupOffsets() throws Exception {
        String topic = prefix + "-alter-offsets";
        client.create(topic, 2);
        client.send(Records.range(topic, 2, 0, RECORDS, epochMs), Map.of());
        alter(topic, topic, 0, 4);
        alter(topic, topic, 1, 10);
        try (var consumer = client.consumer(Map.of("group.id", topic))) {
            consumer.subscribe(List.of(topic));
            Client.same(Client.poll(consumer, 6).get(0).offset(), 4L, "where a consumer begins");
        }
        Client.get(admin.deleteConsumerGroupOffsets(topic, Set.of(new TopicPartition(topic, 0))).all());
        Client.same(offsets(topic).keySet(), Set.of(new TopicPartition(topic, 1)), "partitions after one was deleted");
        Client.get(admin.deleteConsumerGroupOffsets(topic, Set.of(new TopicPartition(topic, 0))).all());
        Client.fails(GroupIdNotFoundException.class, () -> Client.get(
                admin.deleteConsumerGroupOffsets(topic + "-no", Set.of(new TopicPartition(topic, 0))).all()));
        Client.get(admin.deleteTopics(List.of(topic)).all());
        Client.waitUntil(() -> offsets(topic).isEmpty(), "the offsets are gone with the topic");
        return null;
    }

    /** Offsets of a group that has members are theirs: nobody else moves or deletes them. */
    private String changeOffsetsInUse(Map<String, Object> settings) throws Exception {
        try (Team team = team("in-use-" + settings.get("group.protocol"))) {
            Member member = team.join("a", settings);
            team.awaitShares(PARTITIONS);
            team.sendAndRead(RECORDS);
            TopicPartition part = new TopicPartition(team.group, 0);
            Client.waitUntil(() -> offsets(team.group).size() == PARTITIONS, "all is committed");
            Client.fails(UnknownMemberIdException.class, () -> alter(team.group, team.group, 0, 1));
            Client.fails(GroupSubscribedToTopicException.class,
                    () -> Client.get(admin.deleteConsumerGroupOffsets(team.group, Set.of(part)).all()));
            Client.same(offsets(team.group).get(part).offset(), (long) RECORDS / PARTITIONS, "the member's offset");
            team.leave(member);
            alter(team.group, team.group, 0, 1);
            Client.same(offsets(team.group).get(part).offset(), 1L, "the offset, after the member has left");
            team.checkUndisturbed();
        }
        return null;
    }

    private String deleteGroup(Map<String, Object> settings) throws Exception {
        try (Team team = team("delete-" + settings.get("group.protocol"))) {
            Member member = team.join("a", settings);
            team.awaitShares(PARTITIONS);
            team.sendAndRead(RECORDS);
            Client.fails(GroupNotEmptyException.class, () -> delete(team.group));
            team.sendAndRead(RECORDS);
            team.leave(member);
            delete(team.group);
            Client.fails(GroupIdNotFoundException.class, team::describe);
            Client.fails(GroupIdNotFoundException.class, () -> delete(team.group));
            Client.same(offsets(team.group), Map.of(), "offsets of the deleted group");
        }
        return null;
    }

    private Void delete(String group) throws Exception {
        return Client.get(admin.deleteConsumerGroups(List.of(group)).all());
    }

    private String removeMembers(Map<String, Object> settings) throws Exception {
        try (Team team = team("remove-" + settings.get("group.protocol"))) {
            Member first = team.join("a", RebalanceCases.with(settings, "group.instance.id", "one"));
            Member second = team.join("b", RebalanceCases.with(settings, "group.instance.id", "two"));
            team.awaitShares(2, 2);
            team.sendAndRead(RECORDS);
            // A static member that closes stays in the group, until its session ends or somebody puts it out.
            team.leave(first);
            Client.check(team.owned(second).size() == 2, "the partitions of the closed member have moved");
            Client.fails(UnknownMemberIdException.class, () -> remove(team.group, "three"));
            remove(team.group, "one");
            team.awaitShares(PARTITIONS);
            team.sendAndRead(RECORDS);
            team.leave(second);
            Client.get(admin.removeMembersFromConsumerGroup(
                    team.group, new RemoveMembersFromConsumerGroupOptions()).all());
            Client.waitUntil(() -> team.describe().groupState() == GroupState.EMPTY, "the group is empty");
            team.checkUndisturbed();
        }
        return null;
    }

    private Void remove(String group, String instance) throws Exception {
        Collection<MemberToRemove> members = List.of(new MemberToRemove(instance));
        return Client.get(admin.removeMembersFromConsumerGroup(
                group, new RemoveMembersFromConsumerGroupOptions(members)).all());
    }

    private String groupConfigs() throws Exception {
        String group = prefix + "-configs";
        ConfigEntry before = config(group, "consumer.session.timeout.ms");
        Client.same(before.source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG, "source of a default");
        Client.same(before.type(), ConfigEntry.ConfigType.INT, "type");
        configure(group, "consumer.session.timeout.ms", "50000", OpType.SET);
        configure(group, "consumer.heartbeat.interval.ms", "6000", OpType.SET);
        Client.waitUntil(() -> config(group, "consumer.heartbeat.interval.ms").value().equals("6000"), "it is altered");
        ConfigEntry set = config(group, "consumer.session.timeout.ms");
        Client.same(set.value(), "50000", "consumer.session.timeout.ms as altered");
        Client.same(set.source(), ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG, "its source");
        configure(group, "consumer.session.timeout.ms", null, OpType.DELETE);
        Client.waitUntil(() -> config(group, "consumer.session.timeout.ms").equals(before), "the default is back");
        Client.fails(InvalidConfigurationException.class, () -> configure(group, "no.such.config", "1", OpType.SET));
        for (String value : List.of("soon", "1")) {
            Client.fails(InvalidConfigurationException.class,
                    () -> configure(group, "consumer.session.timeout.ms", value, OpType.SET));
        }
        Set<String> named = Client.get(admin.listConfigResources(
                Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions()).all())
                .stream().map(ConfigResource::name).collect(Collectors.toSet());
        Client.check(named.contains(group), "the group is not among the resources that have configs");
        return "session timeout " + before.value();
    }

    private ConfigEntry config(String group, String name) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Config found = Client.get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        Client.check(found.get(name) != null, name + " is not described");
        return found.get(name);
    }

    private Void configure(String group, String name, String value, OpType type) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
        return Client.get(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private Void alter(String group, String topic, int partition, long offset) throws Exception {
        return Client.get(admin.alterConsumerGroupOffsets(
                group, Map.of(new TopicPartition(topic, partition), new OffsetAndMetadata(offset))).all());
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets(String group) throws Exception {
        return Client.get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    private Team team(String name) throws Exception {
        return new Team(client, prefix + "-" + name, PARTITIONS, epochMs);
    }
}
