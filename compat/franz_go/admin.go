package main

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"headrace/compat/common"
)

func (d *driver) apiVersions() (string, error) {
	ctx, cancel := limited()
	defer cancel()
	all, err := d.admin.ApiVersions(ctx)
	if err != nil {
		return "", err
	}
	for _, broker := range all {
		if broker.Err != nil {
			return "", broker.Err
		}
		for key, name := range map[int16]string{0: "Produce", 1: "Fetch", 3: "Metadata", 22: "InitProducerID"} {
			if _, exists := broker.KeyMaxVersion(key); !exists {
				return "", fmt.Errorf("%s is not among the APIs", name)
			}
		}
		return "looks like " + broker.VersionGuess(), nil
	}
	return "", errors.New("no broker answered")
}

func (d *driver) describeCluster() error {
	ctx, cancel := limited()
	defer cancel()
	found, err := d.admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if found.Cluster == "" || len(found.Brokers) == 0 {
		return fmt.Errorf("cluster %q with %d brokers", found.Cluster, len(found.Brokers))
	}
	for _, broker := range found.Brokers {
		if broker.NodeID == found.Controller {
			return nil
		}
	}
	return fmt.Errorf("controller %d is none of the brokers", found.Controller)
}

func (d *driver) createTopics() error {
	one, several := d.task.Topic("create-1"), d.task.Topic("create-12")
	if err := errors.Join(d.create(one, 1, nil), d.create(several, 12, nil)); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	listed, err := d.admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	if listed[several].ID == (kadm.TopicID{}) {
		return errors.New("the topic has no id")
	}
	return errors.Join(
		common.Equal(len(listed[one].Partitions), 1, "partitions"),
		common.Equal(len(listed[several].Partitions), 12, "partitions"),
		refused(d.create(one, 1, nil), kerr.TopicAlreadyExists),
		refused(d.create("bad name!", 1, nil), kerr.InvalidTopicException),
		refused(d.create(d.task.Topic("create-0"), 0, nil), kerr.InvalidPartitions),
	)
}

func refused(got error, wanted *kerr.Error) error {
	if errors.Is(got, wanted) {
		return nil
	}
	return fmt.Errorf("got %v, wanted %s", got, wanted.Message)
}

func (d *driver) listOffsets() error {
	topic := d.task.Topic("offsets")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	if err := d.send(topic, common.Range(1, 0, 10, d.task.EpochMs)); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	start, err := d.admin.ListStartOffsets(ctx, topic)
	if err = errors.Join(err, offset(start, topic, 0, "start")); err != nil {
		return err
	}
	end, err := d.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, offset(end, topic, 10, "end")); err != nil {
		return err
	}
	newest, err := d.admin.ListMaxTimestampOffsets(ctx, topic)
	if err = errors.Join(err, offset(newest, topic, 9, "max timestamp")); err != nil {
		return err
	}
	// kadm answers with the end of the partition where the broker finds nothing so late.
	for after, wanted := range map[int64]int64{3_500: 4, 4_000: 4, 60_000: 10} {
		found, err := d.admin.ListOffsetsAfterMilli(ctx, d.task.EpochMs+after, topic)
		if err = errors.Join(err, offset(found, topic, wanted, fmt.Sprint("after ", after))); err != nil {
			return err
		}
	}
	return nil
}

func offset(listed kadm.ListedOffsets, topic string, wanted int64, what string) error {
	found, ok := listed.Lookup(topic, 0)
	if !ok || found.Err != nil {
		return fmt.Errorf("%s: no offset (%v)", what, found.Err)
	}
	return common.Equal(found.Offset, wanted, what)
}

func (d *driver) topicConfigs() error {
	topic := d.task.Topic("configs")
	if err := d.create(topic, 1, map[string]string{"retention.ms": "3600000"}); err != nil {
		return err
	}
	before, err := d.config(topic, "max.message.bytes")
	if err != nil {
		return err
	}
	if before.Source != kmsg.ConfigSourceDefaultConfig {
		return fmt.Errorf("source of a default: %v", before.Source)
	}
	value := "2000000"
	if err := d.alter(topic, kadm.SetConfig, "max.message.bytes", &value); err != nil {
		return err
	}
	after, err := d.config(topic, "max.message.bytes")
	if err != nil {
		return err
	}
	kept, err := d.config(topic, "retention.ms")
	if err != nil {
		return err
	}
	if kept.Source != kmsg.ConfigSourceDynamicTopicConfig {
		return fmt.Errorf("source of what was set: %v", kept.Source)
	}
	if err := d.alter(topic, kadm.DeleteConfig, "max.message.bytes", nil); err != nil {
		return err
	}
	last, err := d.config(topic, "max.message.bytes")
	return errors.Join(
		err,
		common.Equal(after.MaybeValue(), value, "as altered"),
		common.Equal(kept.MaybeValue(), "3600000", "the other config"),
		common.Equal(last.MaybeValue(), before.MaybeValue(), "after its removal"),
		refused(d.alter(topic, kadm.SetConfig, "no.such.config", &value), kerr.InvalidConfig),
	)
}

func (d *driver) config(topic, name string) (kadm.Config, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := d.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return kadm.Config{}, err
	}
	one, err := found.On(topic, nil)
	if err = errors.Join(err, one.Err); err != nil {
		return kadm.Config{}, err
	}
	for _, config := range one.Configs {
		if config.Key == name {
			return config, nil
		}
	}
	return kadm.Config{}, fmt.Errorf("no config %s among %d", name, len(one.Configs))
}

func (d *driver) alter(topic string, operation kadm.IncrementalOp, name string, value *string) error {
	ctx, cancel := limited()
	defer cancel()
	change := kadm.AlterConfig{Op: operation, Name: name, Value: value}
	done, err := d.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, topic)
	if err != nil {
		return err
	}
	one, err := done.On(topic, nil)
	return errors.Join(err, one.Err)
}

func (d *driver) deleteRecords() error {
	topic := d.task.Topic("delete-records")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	wanted := common.Range(1, 0, 10, d.task.EpochMs)
	if err := d.send(topic, wanted); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 4, -1)
	done, err := d.admin.DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	found, _ := done.Lookup(topic, 0)
	if err := errors.Join(found.Err, common.Equal(found.LowWatermark, 4, "low watermark")); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted[4:])
}

func (d *driver) createPartitions() error {
	topic := d.task.Topic("partitions")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	before := common.Range(1, 0, 5, d.task.EpochMs)
	if err := d.send(topic, before); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	done, err := d.admin.UpdatePartitions(ctx, 3, topic)
	if err = errors.Join(err, done.Error()); err != nil {
		return err
	}
	err = common.WaitUntil("the topic has 3 partitions", func() (bool, error) {
		listed, err := d.admin.ListTopics(ctx, topic)
		return len(listed[topic].Partitions) == 3, err
	})
	if err != nil {
		return err
	}
	after := common.Range(3, 20, 29, d.task.EpochMs)
	if err := d.send(topic, after); err != nil {
		return err
	}
	return d.compare(topic, 3, append(before, after...))
}

func (d *driver) deleteTopics() error {
	topic := d.task.Topic("delete")
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	if err := d.send(topic, common.Range(2, 0, 4, d.task.EpochMs)); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	if done, err := d.admin.DeleteTopics(ctx, topic); err != nil || done.Error() != nil {
		return errors.Join(err, done.Error())
	}
	err := common.WaitUntil("the topic is gone", func() (bool, error) {
		listed, err := d.admin.ListTopics(ctx)
		return !listed.Has(topic), err
	})
	if err != nil {
		return err
	}
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	wanted := common.Range(1, 7, 9, d.task.EpochMs)
	if err := d.send(topic, wanted); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted)
}

func (d *driver) logDirs() error {
	topic := d.task.Topic("dirs")
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	if err := d.send(topic, common.Range(2, 0, 10, d.task.EpochMs)); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	found, err := d.admin.DescribeAllLogDirs(ctx, kadm.TopicsSet{topic: {0: {}, 1: {}}})
	if err != nil {
		return err
	}
	sizes := 0
	found.Each(func(dir kadm.DescribedLogDir) {
		dir.Topics.Each(func(part kadm.DescribedLogDirPartition) {
			if part.Topic == topic && part.Size > 0 {
				sizes++
			}
		})
	})
	if sizes < 2 {
		return fmt.Errorf("log dirs name %d partitions that hold something, not 2", sizes)
	}
	return nil
}
