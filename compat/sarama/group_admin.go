package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

// groupAdmin does to a group what operators do: first while it has a member, then when it is empty, then away with it.
// At 0.10.2 groups can be listed, described and asked for their offsets; the rest came later.
func (d *driver) groupAdmin() error {
	topic := d.task.Topic("admin")
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	if err := d.send(topic, d.records(2, 0, 20), d.config()); err != nil {
		return err
	}
	group := common.NewGroup()
	one, err := d.join(group, topic, "one", d.groupConfig("range"))
	if err != nil {
		return err
	}
	return d.withAdmin(func(admin sarama.ClusterAdmin) error {
		err := errors.Join(
			group.WaitUntilRead(topic, []int64{10, 10}), listed(admin, topic, true), described(admin, topic),
		)
		if d.hasHeaders() {
			err = errors.Join(err, refusedWhileAlive(admin, topic))
		}
		if err = errors.Join(err, one.stop(), group.Wrong()); err != nil {
			return err
		}
		err = common.WaitUntil("the group is empty", func() (bool, error) {
			found, err := admin.DescribeConsumerGroups([]string{topic})
			return err == nil && found[0].State == "Empty" && len(found[0].Members) == 0, err
		})
		if err = errors.Join(err, unknownGroup(admin, topic)); err != nil || !d.hasHeaders() {
			return err
		}
		return errors.Join(offsetsOfEmpty(admin, topic), admin.DeleteConsumerGroup(topic), listed(admin, topic, false),
			refused(admin.DeleteConsumerGroup(topic), sarama.ErrGroupIDNotFound))
	})
}

func listed(admin sarama.ClusterAdmin, groupID string, wanted bool) error {
	found, err := admin.ListConsumerGroups()
	if err != nil {
		return err
	}
	kind, ok := found[groupID]
	if ok && kind != "consumer" {
		return fmt.Errorf("the group's protocol type is %q", kind)
	}
	return common.Equal(ok, wanted, "the group is listed")
}

func described(admin sarama.ClusterAdmin, topic string) error {
	found, err := admin.DescribeConsumerGroups([]string{topic})
	if err != nil {
		return err
	}
	if len(found) != 1 || len(found[0].Members) != 1 {
		return fmt.Errorf("%d groups are described, not one of one member", len(found))
	}
	for _, member := range found[0].Members {
		assigned, err := member.GetMemberAssignment()
		if err != nil {
			return err
		}
		metadata, err := member.GetMemberMetadata()
		if err != nil {
			return err
		}
		return errors.Join(
			common.Equal(found[0].State, "Stable", "state"),
			common.Equal(found[0].ProtocolType, "consumer", "protocol type"),
			common.Equal(found[0].Protocol, "range", "protocol"),
			common.Equal(member.ClientId, "compat-sarama", "client id"),
			common.Equal(strings.TrimPrefix(member.ClientHost, "/"), "127.0.0.1", "client host"),
			common.Equal(strings.Join(metadata.Topics, ","), topic, "subscribed topics"),
			common.Equal(len(assigned.Topics[topic]), 2, "assigned partitions"),
		)
	}
	return nil
}

func refusedWhileAlive(admin sarama.ClusterAdmin, groupID string) error {
	altered, err := alterOffset(admin, groupID, groupID, 1, "")
	return errors.Join(
		err,
		refused(altered, sarama.ErrUnknownMemberId),
		refused(admin.DeleteConsumerGroup(groupID), sarama.ErrNonEmptyGroup),
		refused(admin.DeleteConsumerGroupOffset(groupID, groupID, 0), sarama.ErrGroupSubscribedToTopic),
	)
}

// unknownGroup asks for offsets that nobody has committed.
func unknownGroup(admin sarama.ClusterAdmin, topic string) error {
	offsets, err := admin.ListConsumerGroupOffsets(topic+"-unknown", map[string][]int32{topic: {0, 1}})
	if err != nil {
		return err
	}
	found := offsets.GetBlock(topic, 1)
	return errors.Join(
		refused(found.Err, sarama.ErrNoError), common.Equal(found.Offset, -1, "offset of a group that nobody knows"),
	)
}

// alterOffset returns the error of partition 0 beside that of the request.
func alterOffset(
	admin sarama.ClusterAdmin, groupID, topic string, offset int64, metadata string,
) (sarama.KError, error) {
	wanted := map[string]map[int32]sarama.OffsetAndMetadata{
		topic: {0: {Offset: offset, Metadata: metadata, LeaderEpoch: -1}},
	}
	answer, err := admin.AlterConsumerGroupOffsets(groupID, wanted, nil)
	if err != nil {
		return sarama.ErrNoError, err
	}
	return answer.Errors[topic][0], nil
}

// offsetsOfEmpty moves, reads and deletes offsets of a group without members, several groups at once.
func offsetsOfEmpty(admin sarama.ClusterAdmin, topic string) error {
	simple, unknown := topic+"-simple", topic+"-unknown"
	moved, err := alterOffset(admin, topic, topic, 4, "back to four")
	if err != nil {
		return err
	}
	alone, err := alterOffset(admin, simple, topic, 7, "")
	if err != nil {
		return err
	}
	tooLarge, err := alterOffset(admin, simple, topic, 8, strings.Repeat("m", 4097))
	if err != nil {
		return err
	}
	err = errors.Join(
		refused(moved, sarama.ErrNoError), refused(alone, sarama.ErrNoError),
		refused(tooLarge, sarama.ErrOffsetMetadataTooLarge),
	)
	if err != nil {
		return err
	}
	many, err := admin.ListConsumerGroupOffsetsBatch(map[string]map[string][]int32{
		topic: {topic: {0, 1}}, simple: nil, unknown: nil,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(
		common.Equal(many[topic].Blocks[topic][0].Offset, 4, "moved offset"),
		common.Equal(many[topic].Blocks[topic][0].Metadata, "back to four", "its metadata"),
		common.Equal(many[topic].Blocks[topic][1].Offset, 10, "offset beside it"),
		common.Equal(many[simple].Blocks[topic][0].Offset, 7, "offset without members"),
		common.Equal(len(many[unknown].Blocks), 0, "topics of a group that nobody knows"),
	); err != nil {
		return err
	}
	if err := admin.DeleteConsumerGroupOffset(topic, topic, 1); err != nil {
		return err
	}
	left, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0, 1}})
	if err != nil {
		return err
	}
	return errors.Join(
		common.Equal(left.GetBlock(topic, 0).Offset, 4, "offset beside the deleted one"),
		common.Equal(left.GetBlock(topic, 1).Offset, -1, "deleted offset"),
	)
}

// offsetManager keeps offsets in a group without being a member of it.
func (d *driver) offsetManager() error {
	topic := d.task.Topic("offset-manager")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	if err := d.managed(topic, sarama.OffsetOldest, "", func(part sarama.PartitionOffsetManager) {
		part.MarkOffset(7, "seven")
	}); err != nil {
		return err
	}
	if err := d.managed(topic, 7, "seven", func(part sarama.PartitionOffsetManager) {
		part.ResetOffset(3, "three")
	}); err != nil {
		return err
	}
	return errors.Join(
		d.managed(topic, 3, "three", func(sarama.PartitionOffsetManager) {}), d.committed(topic, topic, 0, 3),
	)
}

// managed looks at the offset that is kept, changes it, and commits that.
func (d *driver) managed(
	topic string, offset int64, metadata string, change func(sarama.PartitionOffsetManager),
) error {
	config := d.config()
	config.Consumer.Offsets.AutoCommit.Enable = false
	client, err := sarama.NewClient(d.addresses(), config)
	if err != nil {
		return err
	}
	defer client.Close()
	manager, err := sarama.NewOffsetManagerFromClient(topic, client)
	if err != nil {
		return err
	}
	part, err := manager.ManagePartition(topic, 0)
	if err != nil {
		return errors.Join(err, manager.Close())
	}
	foundOffset, foundMetadata := part.NextOffset()
	change(part)
	manager.Commit()
	// Without automatic commits only the manager's end closes its parts: Close of a part would wait for ever.
	part.AsyncClose()
	return errors.Join(
		manager.Close(), common.Equal(foundOffset, offset, "managed offset"),
		common.Equal(foundMetadata, metadata, "its metadata"),
	)
}
