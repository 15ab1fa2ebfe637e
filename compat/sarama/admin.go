package main

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

func (d *driver) apiVersions() (string, error) {
	broker := sarama.NewBroker(d.task.Bootstrap)
	if err := broker.Open(d.config()); err != nil {
		return "", err
	}
	defer broker.Close()
	found, err := broker.ApiVersions(&sarama.ApiVersionsRequest{})
	if err != nil {
		return "", err
	}
	for _, api := range found.ApiKeys {
		if api.ApiKey == 0 {
			return fmt.Sprintf("Sarama at %s, %d APIs, Produce %d-%d", d.version, len(found.ApiKeys), api.MinVersion, api.MaxVersion), nil
		}
	}
	return "", errors.New("Produce is not among the APIs")
}

func (d *driver) describeCluster() error {
	return d.withAdmin(func(admin sarama.ClusterAdmin) error {
		brokers, controller, err := admin.DescribeCluster()
		if err != nil {
			return err
		}
		for _, broker := range brokers {
			if broker.ID() == controller {
				return nil
			}
		}
		return fmt.Errorf("controller %d is none of %d brokers", controller, len(brokers))
	})
}

func (d *driver) createTopics() error {
	one, several := d.task.Topic("create-1"), d.task.Topic("create-12")
	if err := errors.Join(d.create(one, 1, nil), d.create(several, 12, nil)); err != nil {
		return err
	}
	partitions, err := d.partitions(one, several)
	if err != nil {
		return err
	}
	return errors.Join(
		common.Equal(partitions[one], 1, "partitions"),
		common.Equal(partitions[several], 12, "partitions"),
		refused(d.create(one, 1, nil), sarama.ErrTopicAlreadyExists),
		refused(d.create("bad name!", 1, nil), sarama.ErrInvalidTopic),
		refused(d.create(d.task.Topic("create-0"), 0, nil), sarama.ErrInvalidPartitions),
	)
}

func (d *driver) partitions(topics ...string) (map[string]int, error) {
	found := map[string]int{}
	err := d.withAdmin(func(admin sarama.ClusterAdmin) error {
		described, err := admin.DescribeTopics(topics)
		for _, topic := range described {
			found[topic.Name] = len(topic.Partitions)
		}
		return err
	})
	return found, err
}

func refused(got error, wanted sarama.KError) error {
	if errors.Is(got, wanted) {
		return nil
	}
	return fmt.Errorf("got %v, wanted %v", got, wanted)
}

func (d *driver) listOffsets() error {
	topic := d.task.Topic("offsets")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	if err := d.send(topic, d.records(1, 0, 10), d.config()); err != nil {
		return err
	}
	client, err := sarama.NewClient(d.addresses(), d.config())
	if err != nil {
		return err
	}
	defer client.Close()
	wanted := map[int64]int64{
		sarama.OffsetOldest: 0, sarama.OffsetNewest: 10, d.task.EpochMs + 3_500: 4, d.task.EpochMs + 4_000: 4,
		d.task.EpochMs + 60_000: -1,
	}
	for at, offset := range wanted {
		got, err := client.GetOffset(topic, 0, at)
		if err = errors.Join(err, common.Equal(got, offset, fmt.Sprint("offset at ", at))); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) topicConfigs() error {
	topic := d.task.Topic("configs")
	if err := d.create(topic, 1, map[string]string{"retention.ms": "3600000"}); err != nil {
		return err
	}
	before, err := d.topicConfig(topic, "max.message.bytes")
	if err != nil {
		return err
	}
	value := "2000000"
	set := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	if err := d.alter(topic, "max.message.bytes", set); err != nil {
		return err
	}
	after, err := d.topicConfig(topic, "max.message.bytes")
	if err != nil {
		return err
	}
	kept, err := d.topicConfig(topic, "retention.ms")
	if err != nil {
		return err
	}
	remove := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
	if err := d.alter(topic, "max.message.bytes", remove); err != nil {
		return err
	}
	last, err := d.topicConfig(topic, "max.message.bytes")
	return errors.Join(
		err,
		common.Equal(after.Value, value, "as altered"),
		common.Equal(after.Source, sarama.SourceTopic, "its source"),
		common.Equal(before.Source, sarama.SourceDefault, "source of a default"),
		common.Equal(kept.Value, "3600000", "the other config"),
		common.Equal(last.Value, before.Value, "after its removal"),
		refused(d.alter(topic, "no.such.config", set), sarama.ErrInvalidConfig),
	)
}

// alterConfigs replaces all of a topic's configs at once, with the API that came before the incremental one.
func (d *driver) alterConfigs() error {
	topic := d.task.Topic("alter-configs")
	if err := d.create(topic, 1, map[string]string{"retention.ms": "3600000"}); err != nil {
		return err
	}
	value := "2000000"
	err := d.withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"max.message.bytes": &value}, false)
	})
	if err != nil {
		return err
	}
	after, err := d.topicConfig(topic, "max.message.bytes")
	if err != nil {
		return err
	}
	reset, err := d.topicConfig(topic, "retention.ms")
	return errors.Join(
		err,
		common.Equal(after.Value, value, "as altered"),
		common.Equal(reset.Source, sarama.SourceDefault, "source of what was not named"),
	)
}

func (d *driver) topicConfig(topic, name string) (found sarama.ConfigEntry, err error) {
	err = d.withAdmin(func(admin sarama.ClusterAdmin) error {
		resource := &sarama.ConfigResource{Type: sarama.TopicResource, Name: topic}
		results, err := admin.DescribeConfigs(
			[]*sarama.ConfigResource{resource}, sarama.DescribeConfigsOptions{IncludeSynonyms: true},
		)
		if err != nil {
			return err
		}
		for _, result := range results {
			for _, entry := range result.Configs {
				if entry.Name == name {
					found = entry
					return nil
				}
			}
		}
		return fmt.Errorf("no config %s", name)
	})
	return found, err
}

func (d *driver) alter(topic, name string, entry sarama.IncrementalAlterConfigsEntry) error {
	return d.withAdmin(func(admin sarama.ClusterAdmin) error {
		entries := map[string]sarama.IncrementalAlterConfigsEntry{name: entry}
		return admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false)
	})
}

func (d *driver) deleteRecords() error {
	topic := d.task.Topic("delete-records")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	wanted := d.records(1, 0, 10)
	if err := d.send(topic, wanted, d.config()); err != nil {
		return err
	}
	err := d.withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.DeleteRecords(topic, map[int32]int64{0: 4})
	})
	if err != nil {
		return err
	}
	return d.compare(topic, 1, wanted[4:], d.config())
}

func (d *driver) createPartitions() error {
	topic := d.task.Topic("partitions")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	before := d.records(1, 0, 5)
	if err := d.send(topic, before, d.config()); err != nil {
		return err
	}
	err := d.withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.CreatePartitions(topic, 3, nil, false)
	})
	if err != nil {
		return err
	}
	err = common.WaitUntil("the topic has 3 partitions", func() (bool, error) {
		found, err := d.partitions(topic)
		return found[topic] == 3, err
	})
	if err != nil {
		return err
	}
	after := d.records(3, 20, 29)
	if err := d.send(topic, after, d.config()); err != nil {
		return err
	}
	return d.compare(topic, 3, append(before, after...), d.config())
}

func (d *driver) deleteTopics() error {
	topic := d.task.Topic("delete")
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	if err := d.send(topic, d.records(2, 0, 4), d.config()); err != nil {
		return err
	}
	if err := d.withAdmin(func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) }); err != nil {
		return err
	}
	err := common.WaitUntil("the topic is gone", func() (bool, error) {
		client, err := sarama.NewClient(d.addresses(), d.config())
		if err != nil {
			return false, err
		}
		defer client.Close()
		topics, err := client.Topics()
		for _, listed := range topics {
			if listed == topic {
				return false, err
			}
		}
		return true, err
	})
	if err != nil {
		return err
	}
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	wanted := d.records(1, 7, 9)
	if err := d.send(topic, wanted, d.config()); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted, d.config())
}
